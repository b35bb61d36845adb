"""The drawings in the page's data: every module has one, equal ones share a layout, and large graphs stay small."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import Wiring
from sardonyx.reporting.page import drawings
from sardonyx.reporting.page.drawings import KINDS
from sardonyx.reporting.plots.module_contents import module_contents
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()


def data(before: Wiring | None = RUN.wiring_before, after: Wiring | None = RUN.wiring_after) -> dict[str, Any]:
    made = drawings.section(RunBundle("some", replace(RUN, wiring_before=before, wiring_after=after)))
    assert made is not None
    assert not made.html
    return made.data


def read(table: dict[str, Any]) -> list[str]:
    texts: list[str] = []
    for keep, rest in zip(table["shared"], table["rest"], strict=True):
        texts.append((texts[-1] if texts else "")[:keep] + rest)
    return texts


def test_every_module_of_both_graphs_is_there_with_its_boxes() -> None:
    result = data()
    strings = read(result["strings"])
    for side, wiring in (("before", RUN.wiring_before), ("after", RUN.wiring_after)):
        assert wiring is not None
        wanted = module_contents(wiring)
        assert [strings[module[0]] for module in result[side]] == list(wanted)
        for path, frame, names, text in result[side]:
            inside = wanted[strings[path]]
            boxes, open_texts = result["frames"][frame][2], iter(text)
            texts = [strings[box[5] if box[5] >= 0 else next(open_texts)] for box in boxes]
            assert texts == [part.text for part in inside.parts]
            assert [strings[name] for name in names] == [part.name or part.path or "" for part in inside.parts]
            assert len(result["frames"][frame][3]) == len(inside.edges)


def test_equal_layers_share_one_layout() -> None:
    result = data()
    strings = read(result["strings"])
    frames = {module[1] for module in result["before"] if strings[module[0]].endswith(".attention")}
    assert len(frames) == 1 + 1  # the first reads from the model itself


def test_nodes_in_only_one_graph_are_marked() -> None:
    result = data()
    kinds = {
        side: {KINDS[box[4]] for _, frame, *_ in result[side] for box in result["frames"][frame][2]}
        for side in ("before", "after")
    }
    assert "gone" in kinds["before"]
    assert "made" not in kinds["before"]
    assert "made" in kinds["after"]
    assert "gone" not in kinds["after"]


def test_a_module_with_too_many_boxes_has_a_note_instead_of_a_drawing() -> None:
    size = 5000
    names = tuple(f"n{at}" for at in range(size))
    chain = tuple((at, at + 1) for at in range(size - 1))
    flat = Wiring(("",), names, ("Relu",) * size, (0,) * size, chain, {}, {})
    result = data(flat, flat)
    assert [module[1:] for module in result["before"]] == [[-1, size]]


@pytest.mark.slow
def test_a_thousand_equal_modules_add_little_more_than_their_names() -> None:
    count = 1000
    modules = tuple(f"layers.{at}" for at in range(count))
    names = tuple(f"/layers/{at}/{op}" for at in range(count) for op in ("a", "b", "c", "d"))
    owners = tuple(at // 4 for at in range(4 * count))
    edges = tuple((at, at + 1) for at in range(4 * count - 1))
    wiring = Wiring(
        modules, names, ("MatMul", "Add", "Relu", "Mul") * count, owners, edges, {"x": (0,)}, {"y": 4 * count - 1}
    )
    result = data(wiring, wiring)
    assert len(result["frames"]) < 10
    assert len(msgspec.json.encode(result)) < 90 * 2 * count


def test_a_run_without_wiring_has_no_drawings() -> None:
    assert drawings.section(RunBundle("some", replace(RUN, wiring_before=None))) is None
