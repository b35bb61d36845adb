"""A cell's file has the whole answer or does not exist, and its name depends on everything that affects it."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sardonyx.common.atomic_write import draft_name
from sardonyx.fleet import storage
from sardonyx.fleet.cells import Cell, CellStore, cell_hash
from sardonyx.fleet.storage import open_store
from sardonyx.fleet.work import Outcome, code_hash

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
    """Those of a study that is still running stay."""
    killed = subprocess.Popen(["true"])
    killed.wait()
    running = draft_name("x.json")
    folder = tmp_path / "cells" / "order"
    folder.mkdir(parents=True)
    for name in (running, running.replace(f"-{os.getpid()}-", f"-{killed.pid}-")):
        (folder / name).touch()
    CellStore(tmp_path, "code")
    assert os.listdir(folder) == [running]


def test_a_failure_replaces_no_answer(tmp_path: Path) -> None:
    """Of two studies at once, one may lose the process of a cell that the other computes."""
    store, answered = CellStore(tmp_path, "code"), Outcome({"nodes": 1}, None, 0.1)
    store.store(CELL, "digest", answered)
    store.store(CELL, "digest", Outcome(None, "its process was killed", 0.1))
    assert store.find(CELL, "digest") == answered
    store.store(CELL, "digest", Outcome({"nodes": 2}, None, 0.1))
    assert store.find(CELL, "digest") == Outcome({"nodes": 2}, None, 0.1)


def test_everything_but_the_log_is_stored(tmp_path: Path) -> None:
    outcome = Outcome({"nodes": 1}, None, 0.5, peak=1 << 30, machine="here", attempts=2, log="a long text")
    CellStore(tmp_path, "code").store(CELL, "digest", outcome)
    assert CellStore(tmp_path, "code").find(CELL, "digest") == replace(outcome, log="")
    (path,) = tmp_path.rglob("*.json")
    assert b"a long text" not in path.read_bytes()


def test_a_timed_cell_of_another_machine_is_no_answer(tmp_path: Path) -> None:
    store, outcome = CellStore(tmp_path, "code"), Outcome({"nodes": 1}, None, 0.5, machine="there")
    timed = replace(CELL, timed=True)
    for cell in (CELL, timed):
        store.store(cell, "digest", outcome)
    assert store.find(timed, "digest", "here") is None
    assert store.find(timed, "digest", "there") == store.find(timed, "digest") == outcome
    assert store.find(CELL, "digest", "here") == outcome  # its answer does not depend on the machine


def test_cells_at_a_url_are_loaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are stored cost one listing and one request each, sixteen at a time; later ones are still found."""
    url = f"memory://{uuid.uuid4().hex}"
    cells = [replace(CELL, key=str(key)) for key in range(6)]
    first, second = CellStore(url, "code"), CellStore(open_store(url), "code")
    for cell in cells[:4]:
        first.store(cell, "digest", Outcome({"key": cell.key}, None, 0.1))
    second.load((cell, "digest") for cell in cells)
    first.store(cells[4], "digest", Outcome({"key": "4"}, None, 0.1))
    read: list[str] = []
    remote = storage._RemoteStore  # pyright: ignore[reportPrivateUsage]
    original = remote.read
    monkeypatch.setattr(remote, "read", lambda store, name: read.append(name) or original(store, name))
    found = [second.find(cell, "digest") for cell in cells]
    assert [outcome and outcome.answer for outcome in found] == [*({"key": str(key)} for key in range(5)), None]
    assert len(read) == 2  # those that were missing when the others were loaded
    assert second.find(cells[0], "digest") is not None


def _store_all(where: str, seed: int) -> None:
    """Store the same cells as another process, in another order, each several times."""
    store, drawn = CellStore(where, "code"), random.Random(seed)
    for _ in range(3):
        keys = list(range(40))
        drawn.shuffle(keys)
        for key in keys:
            answer = {"key": key, "text": "x" * 20_000}
            store.store(replace(CELL, key=str(key)), "digest", Outcome(answer, None, 0.1, machine=str(seed)))


@pytest.mark.slow
def test_two_processes_that_store_the_same_cells_damage_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_store_all, args=(str(tmp_path), seed)) for seed in range(2)]
    for process in processes:
        process.start()
    store, seen = CellStore(tmp_path, "code"), set[int]()
    while any(process.is_alive() for process in processes):  # whoever reads in the meantime sees complete cells only
        for key in range(40):
            outcome = store.find(replace(CELL, key=str(key)), "digest")
            assert outcome is not None or key not in seen
            seen |= {key} if outcome is not None else set()
    assert [process.exitcode for process in processes] == [0, 0]
    assert seen
    assert len(list(tmp_path.rglob("*.json"))) == 40
    assert not list(tmp_path.rglob("*.part"))
    assert all(store.find(replace(CELL, key=str(key)), "digest") is not None for key in range(40))


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
