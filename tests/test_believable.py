"""The campaign on speed claims plants known work, runs the public command, and resumes after an interruption."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import believable
import chains
import noise
from believable import FASTER, SAME, SLOWER, Limits, Trial
from sardonyx.runtime.timed import Settings, TimedModel


@pytest.mark.parametrize("kind", chains.KINDS)
def test_a_chain_repeats_one_unit_and_its_values_keep_their_size(kind: str) -> None:
    def work(units: int) -> Counter[tuple[str, ...]]:
        model = chains.chain(kind, units)
        shapes = {each.name: str(list(each.dims)) for each in model.graph.initializer}
        return Counter((node.op_type, *(shapes.get(name, "") for name in node.input)) for node in model.graph.node)

    one = work(1)
    assert work(103) == Counter({each: 103 * count for each, count in one.items()})
    feed = np.random.default_rng(0).standard_normal(chains.KINDS[kind][1]).astype(np.float32)
    (answer,) = TimedModel(chains.chain(kind, chains.UNITS), Settings()).ready({"x0": feed})()
    assert isinstance(answer, np.ndarray)
    assert 1e-6 < np.abs(answer).mean() < 1e3


@pytest.mark.medium
def test_planted_work_has_the_requested_share(tmp_path: Path) -> None:
    trials = list(believable.planted(tmp_path, 0.03, 4))
    assert [trial.first.name for trial in trials[:3]] == [f"{kind}-100.onnx" for kind in chains.KINDS]
    assert [trial.second.name for trial in trials[:3]] == [f"{kind}-103.onnx" for kind in chains.KINDS]
    assert trials[3].first == trials[0].first
    assert len({trial.key(Limits(60)) for trial in trials}) == 4
    assert all(trial.right == SLOWER for trial in trials)


@pytest.mark.slow
def test_the_command_is_run_once_and_its_answer_is_cached(tmp_path: Path) -> None:
    limits = Limits(0.1, "cpu")
    kept, (trial, *_) = tmp_path / "kept.jsonl", list(believable.planted(tmp_path, 1.0, 1))
    assert believable.asked(iter([trial]), limits, kept) == [True]  # twice the work: a clear difference
    key, record = json.loads(kept.read_text())
    assert key == trial.key(limits)
    assert 1.3 < record["ratio"] < 3
    wrong = record | {"finding": FASTER}
    kept.write_text(json.dumps([key, wrong]) + "\n")
    assert believable.asked(iter([trial]), limits, kept) == [False]  # not run again


def test_the_same_file_is_given_under_two_names(tmp_path: Path) -> None:
    for name in believable.REAL:
        (tmp_path / f"{name}.onnx").write_bytes(b"as it is")
    trials = list(believable.same(tmp_path, tmp_path, 4))
    assert len({trial.first for trial in trials}) == 3
    for trial in trials:
        assert trial.first != trial.second
        assert trial.first.read_bytes() == trial.second.read_bytes()
        assert trial.right == SAME


@pytest.mark.slow
def test_simulations_count_findings() -> None:
    result = believable.simulated("quiet", 0.02, 1.1, 3)
    assert result[SLOWER] == 3
    assert result["covered"] <= 3
    assert "quiet" in noise.NOISES


def test_no_work_left_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        believable.main(["--folder", str(tmp_path)])
    assert "--same" in capsys.readouterr().err


def test_a_missed_promise_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = list(believable.planted(tmp_path, 0.03, 2))
    answer = {"ratio": 1.0, "low": 0.9, "high": 1.1, "floor": 0.02, "rounds": 9, "spent": 1.0}
    lines = [
        json.dumps([trial.key(Limits(60)), answer | {"finding": find}])
        for trial, find in zip(trials, (SLOWER, SAME), strict=True)
    ]
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    assert believable.main(["--planted", "0.03", "--times", "2", "--folder", str(tmp_path)]) == 1
    assert "MISS 3% planted: not found" in capsys.readouterr().out
    assert believable.main(["--planted", "0.03", "--times", "1", "--folder", str(tmp_path)]) == 0


def test_different_trials_have_different_keys() -> None:
    one = Trial("a", Path("x"), Path("y"), SAME, 1)
    assert len({one.key(limits) for limits in (Limits(20), Limits(60), Limits(60, "cpu"))}) == 3
