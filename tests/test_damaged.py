"""Damaged files give one line and an exit code; the campaign finds a failure that is planted."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import damaged
from fuzzing import damage


def test_there_are_20_files_and_their_trees_are_complete() -> None:
    assert len(damage.subjects()) == 20
    for files in damage.subjects().values():
        data = files[damage.MODEL]
        assert damage.written(damage.parsed(data, onnx.ModelProto.DESCRIPTOR)) == data


def test_a_seed_gives_the_same_file_again_and_other_seeds_others() -> None:
    assert damage.damaged(7) == damage.damaged(7)
    assert len({damage.damaged(seed)[1][damage.MODEL] for seed in range(0, 80, 40)}) == 2


@pytest.mark.slow
def test_40_damaged_files_cause_no_failure() -> None:
    reports = damaged.campaign(range(20_001, 20_041), 1, quiet=True)
    assert len(reports) == 40
    assert not [each for each in reports if each.faults], damaged.summary(reports)
    assert sum(each.codes[:1] == (0,) for each in reports) > 7


@pytest.mark.parametrize("seed", [230798, 233351, 234870, 235633])
def test_files_that_failed_once_give_one_line(seed: int, tmp_path: Path) -> None:
    """An unknown type in a Cast, an axis beyond the rank, an empty batch of 2⁶³ numbers, an input without a type."""
    faults = damaged.examine(seed, tmp_path).faults
    assert not [fault for fault in faults if not fault.startswith("memory")]  # this process has more than a command


@pytest.mark.medium
def test_a_failure_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("sardonyx.verbs.analyze.inspector.inspect", broken)
    seed = next(s for s in range(1, 200, 2) if damaged.examine(s, tmp_path).codes[1:2] == (0,))
    assert any("IndexError: planted" in fault for fault in damaged.examine(seed, tmp_path).faults)
