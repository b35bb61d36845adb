"""The devices on the page: numbers, modules and reasons of both files, and the data that colours the graph."""

from __future__ import annotations

import re

from msgspec.structs import replace

from reporting.sample_graphs import nodes_after, nodes_before
from reporting.sample_placement import HOST, WHERE, placements_of_run
from reporting.sample_run import sample_run
from sardonyx.reporting.page import graph
from sardonyx.reporting.page.devices import section
from sardonyx.reporting.run_bundle import LocatedRecord, RecordGroup, RunBundle, run_bundles

PLACED = placements_of_run()
BUNDLE = RunBundle("some", sample_run(), placements=PLACED)


def _rows(html: str, heading: str) -> list[list[str]]:
    """The texts of the cells of the table after a heading."""
    table = html.partition(heading)[2].partition("</table>")[0].partition("<tbody>")[2]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("</tr>")]
    return [[re.sub("<[^>]*>", "", cell) for cell in row] for row in rows if row]


def _counts(op: str) -> tuple[int, int]:
    before, after = (sum(node.op_type == op for node in nodes) for nodes in (nodes_before(), nodes_after()))
    return before, after


def test_each_device_has_its_numbers_before_and_after() -> None:
    made = section(BUNDLE)
    assert made is not None
    rows = {row[0]: row[1:] for row in _rows(str(made.html), "not counted.</p>")}
    assert list(rows) == ["other", "toy"]
    falls, fails, unknown = (_counts(op) for op in WHERE)
    both = ["{} → {}".format(*each) if each[0] != each[1] else str(each[0]) for each in (falls, fails, unknown)]
    assert rows["toy"][2:5] == both
    assert "25.0 %" in rows["toy"][-1]
    assert rows["other"][2:5] == ["0", "0", "0"]
    assert 'href="#device=toy&amp;section=graph"' in made.html


def test_modules_with_a_node_away_are_listed_with_the_reasons() -> None:
    made = section(BUNDLE)
    assert made is not None
    by_module = {row[0].strip("› "): row[1:] for row in _rows(str(made.html), "by module</h3>")}
    removed = sum(node.op_type == "Identity" and node.owner == "pooler" for node in nodes_before())
    assert removed == 1
    assert by_module["pooler"] == ["0", "1 → 0"], "the column of each device"
    assert by_module["(model)"][1] == "{} → {}".format(*(sum(c) for c in zip(*map(_counts, WHERE), strict=True)))
    why = _rows(str(made.html), "Operators that do not run on toy")
    assert ["Softmax", "float", *map(str, _counts("Softmax")), "no kernel: falls back to the CPU"] in why
    assert "Operators that do not run on other" not in made.html


def test_the_graph_knows_of_each_node_why_it_is_not_on_a_device() -> None:
    before, after = BUNDLE.run.wiring_before, BUNDLE.run.wiring_after
    assert before is not None
    assert after is not None
    data = graph.graph_data(BUNDLE, before, after)
    assert data["devices"] == ["other", "toy"]
    for side, wiring in (("before", before), ("after", after)):
        none, placed = data[side]["placed"]
        assert none == []
        found = dict(zip(placed[::2], placed[1::2], strict=True))
        for node, op in enumerate(wiring.ops):
            host = op == HOST and wiring.modules[wiring.owners[node]] == ""
            wanted = "host" if host else WHERE.get(op)
            assert (data["reasons"][found[node]][0] if node in found else None) == wanted


def test_without_placements_of_both_files_there_is_no_section() -> None:
    assert section(replace(BUNDLE, placements=())) is None
    assert section(replace(BUNDLE, placements=PLACED[:1])) is None


def test_placements_of_both_files_join_their_run() -> None:
    foreign = replace(PLACED[0], model="foreign.onnx")
    group = RecordGroup("here", tuple(map(LocatedRecord, (sample_run(), *PLACED, foreign))))
    (bundle,) = run_bundles([group])
    assert bundle.devices == {"other": PLACED[:2], "toy": PLACED[2:]}
    assert bundle.notes == ("the given Placement is a placement of other files: left out",)
