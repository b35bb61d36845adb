"""The module tree of the page: sums equal the Run's counts, equal layers are one row, each module is in one row."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_profile import sample_profile
from reporting.sample_run import sample_run
from sardonyx.records.bench import Profile
from sardonyx.records.run import ModuleCount, PassRecord, RefusalGroup, Run
from sardonyx.reporting.page.modules import COLUMNS, STATIC_ROWS, island, module_tree, section
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()
Counted = list[tuple[str, int, int]]
NAMES = st.sampled_from(["a", "b", "0", "1", "2", "10", "x-y", "é"])
PATHS = st.lists(NAMES, max_size=4).map(".".join)
COUNTED = st.lists(st.tuples(PATHS, st.integers(0, 3), st.integers(0, 3)), max_size=25, unique_by=lambda each: each[0])


def _run(counted: Counted) -> Run:
    modules = tuple(ModuleCount(path, "", before, after, 7 * before, 3, after) for path, before, after in counted)
    return replace(RUN, modules=modules, passes=(), events=())


def _paths(data: dict[str, Any]) -> list[str]:
    paths: list[str] = []
    for place, (parent, name) in enumerate(zip(data["parents"], data["names"], strict=True)):
        assert parent < place
        paths.append("" if parent < 0 else f"{paths[parent]}.{name}" if paths[parent] else name)
    return paths


def _data(run: Run, profile: Profile | None = None) -> dict[str, Any]:
    return section(RunBundle("m", run, profile=profile)).data


def _tree_data(counted: Counted) -> dict[str, Any]:
    run = _run(counted)
    return island(module_tree(RunBundle("m", run)), run)


@given(COUNTED)
def test_module_counts_add_up_and_every_module_appears_once(counted: Counted) -> None:
    data = _tree_data(counted)
    paths = _paths(data)
    assert len(set(paths)) == len(paths)
    assert {path for path, _before, _after in counted} <= set(paths)
    before, after = sum(each[1] for each in counted), sum(each[2] for each in counted)
    for column, all_of_it in (("nodes_before", before), ("nodes_after", after), ("parameters", 7 * before)):
        assert sum(data["own"][column]) == all_of_it
    for path, before, after in counted:
        at = paths.index(path)
        assert (data["own"]["nodes_before"][at], data["own"]["nodes_after"][at]) == (before, after)


@given(COUNTED)
def test_members_of_a_row_are_grouped_by_those_of_its_parent_row(counted: Counted) -> None:
    """The script finds the children of one copy by its index among the copies."""
    data = _tree_data(counted)
    paths = _paths(data)
    text = Counter(member for _depth, _label, _copies, members in data["rows"] for member in members)
    assert set(text.values()) <= {1}
    above: dict[int, list[int]] = {}
    for depth, _label, copies, members in data["rows"]:
        over = above.get(depth - 1, [])
        assert len(members) == copies * max(len(over), 1)
        for place, member in enumerate(members if over else ()):
            holder = paths[over[place * len(over) // len(members)]]
            assert not holder or paths[member].startswith(f"{holder}.")
        above[depth] = members


@given(COUNTED)
def test_totals_of_the_root_are_the_sums_of_all_modules(counted: Counted) -> None:
    tree = module_tree(RunBundle("m", _run(counted)))
    top = tree.totals()[""]
    for place in range(5):
        assert top[place] == sum(amounts[place] for amounts in tree.own.values())


def test_the_sample_adds_up_to_the_run() -> None:
    run = sample_run()
    own = _data(run)["own"]
    assert sum(own["nodes_before"]) == run.before.nodes
    assert sum(own["nodes_after"]) == run.after.nodes
    assert sum(own["bytes_before"]) == run.before.bytes
    assert sum(own["bytes_after"]) == run.after.bytes


def _profiled() -> tuple[Run, Profile]:
    run = _run([("", 2, 1), ("embed", 3, 1), *((f"layer.{i}.attn", 4, 2) for i in range(3))])
    source, result = (
        replace(artifact, path=path) for artifact, path in ((run.source, "before.onnx"), (run.result, "after.onnx"))
    )
    return replace(run, source=source, result=result), sample_profile()


def test_times_are_summed_over_equal_layers_and_do_not_split_them() -> None:
    run, profile = _profiled()
    data = _data(run, profile)
    assert list(data["own"]) == list(COLUMNS)
    assert round(sum(data["own"]["ms_before"]), 6) == profile.models[0].attributed_ms
    assert "layer.0…2" in [label for _depth, label, _copies, _members in data["rows"]]


def test_without_a_profile_the_page_shows_how_to_get_times() -> None:
    made = section(RunBundle("m", sample_run()))
    assert list(made.data["own"]) == list(COLUMNS[:5])
    assert "No times" in made.html
    assert "ms_before" not in made.html


def test_the_markup_shows_the_upper_levels_folded() -> None:
    html = str(section(RunBundle("m", sample_run())).html)
    rows = re.findall(r"<tr>\n<th scope=\"row\".*?</tr>", html, re.DOTALL)
    assert 1 < len(rows) <= STATIC_ROWS
    assert '<span class="chip">×12</span>' in html
    cells = re.findall(r'<td class="num[^"]*">([^<]*)</td>', rows[0])
    assert cells[:2] == ["324", "187"]


def test_rewrites_and_missed_fusions_are_counted_by_module() -> None:
    run = sample_run()
    group = RefusalGroup("why", 3, (), {"pooler.gone.away": 2, "": 1})
    first = replace(run.passes[0], modules={"pooler": 1, "pooler.gone": 4}, refusals=(group,))
    changed = replace(run, passes=(first,))
    data = _data(changed)
    at = _paths(data).index("pooler")
    assert data["rewrites"] == [[first.name, [at, 5]]]
    assert data["missed"] == [[first.name, "why", [0, 1, at, 2]]]
    assert island(module_tree(RunBundle("m", changed)), changed) == data


def test_a_run_without_modules_still_has_a_tree() -> None:
    silent: tuple[PassRecord, ...] = ()
    made = section(RunBundle("m", replace(sample_run(), modules=(), passes=silent)))
    assert made.data["names"] == [""]
    assert "(model)" in made.html
