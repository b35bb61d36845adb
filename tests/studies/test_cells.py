"""A cell's file has the whole answer or does not exist, and its name depends on everything that affects it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sardonyx.studies.cells import CellStore, cell_hash, code_hash
from sardonyx.studies.experiment import Cell, Outcome

CELL = Cell("order", "a model/with: odd*names", "shuffle 1", {"target": "ort", "seed": 0})
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(answer=st.dictionaries(st.text(), PLAIN, max_size=4), seconds=st.floats(0, 1e6))
def test_a_stored_cell_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, answer: dict[str, Any], seconds: float
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    CellStore(folder, "code").store(CELL, "digest", Outcome(answer, None, seconds))
    assert CellStore(folder, "code").find(CELL, "digest") == Outcome(answer, None, seconds)


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_changed_byte_never_gives_another_answer(
    tmp_path_factory: pytest.TempPathFactory, place: float, change: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    outcome = Outcome({"nodes": 12, "why": "text"}, None, 1.5)
    CellStore(folder, "code").store(CELL, "digest", outcome)
    (path,) = folder.rglob("*.json")
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= change
    path.write_bytes(data)
    assert CellStore(folder, "code").find(CELL, "digest") in (None, outcome)


def test_a_failure_is_stored_but_is_no_answer(tmp_path: Path) -> None:
    store = CellStore(tmp_path, "code")
    store.store(CELL, "digest", Outcome(None, "no memory", 0.1))
    (path,) = tmp_path.rglob("*.json")
    assert b"no memory" in path.read_bytes()
    assert store.find(CELL, "digest") is None
    store.store(CELL, "digest", Outcome({"nodes": 1}, None, 0.1))
    assert list(tmp_path.rglob("*.json")) == [path]
    assert store.find(CELL, "digest") is not None


def test_partial_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    begun = tmp_path / "cells" / "order" / ".x.json.12ab.part"
    begun.parent.mkdir(parents=True)
    begun.touch()
    CellStore(tmp_path, "code")
    assert not begun.exists()


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, experiment="overview"),
        replace(CELL, key="shuffle 2"),
        replace(CELL, options={"target": "ort", "seed": 1}),
        replace(CELL, timed=True),
    ],
)
def test_the_cell_name_depends_on_every_setting(other: Cell) -> None:
    assert cell_hash(other, "digest", "code") != cell_hash(CELL, "digest", "code")


def test_the_model_and_the_code_are_part_of_the_name() -> None:
    names = {cell_hash(CELL, model, code) for model in ("one", "two") for code in ("old", "new")}
    assert len(names) == 4
    assert cell_hash(replace(CELL, options={"seed": 0, "target": "ort"}), "one", "old") in names  # in any order
    assert len(code_hash()) == 64
