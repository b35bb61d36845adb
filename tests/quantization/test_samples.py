"""Samples: their sources, the division into parts, the check against the inputs, the metric and the intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sardonyx
from quantization.small_model import TASK, build
from sardonyx.verbs.quantize.loss import Measured, _expected_changes  # pyright: ignore[reportPrivateUsage]
from sardonyx.verbs.quantize.samples import MIN_DIVIDED_SAMPLES, Samples, divide


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build(tmp_path / "m.onnx")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@given(st.integers(1, 400), st.integers(0, 9), st.booleans(), st.booleans())
def test_the_parts_are_disjoint_and_judge_the_most(count: int, seed: int, calibrate: bool, choose: bool) -> None:
    parts = divide(count, seed, calibrate=calibrate, choose=choose)
    used = [*parts.calibrate, *parts.choose, *parts.judge]
    assert set(used) == set(range(count))
    assert (bool(parts.calibrate), bool(parts.choose)) == (calibrate, choose)
    if count >= MIN_DIVIDED_SAMPLES or not (calibrate or choose):
        assert len(used) == count
        assert not parts.shared
        assert len(parts.judge) >= max(len(parts.calibrate), len(parts.choose))
    else:
        assert parts.shared
    assert divide(count, seed, calibrate=calibrate, choose=choose) == parts


def test_few_samples_make_a_weak_claim() -> None:
    weak = {count: divide(count, 0, calibrate=False, choose=True).record("data").weak for count in (2, 8, 60)}
    assert weak == {
        2: "judged on the 2 samples that the choice was made with: give at least 3",
        8: "judged on 6 samples; the interval needs about 20",
        60: None,
    }
    generated = divide(60, 0, calibrate=False, choose=True).record("generated").weak
    assert generated == "measured on generated inputs, which say little about a trained model"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 3))
def test_an_interval_contains_its_value(errors: list[float], seed: int) -> None:
    sums = np.array([[[error, 1.0, 1.0, 1.0 - error / 2, 3.0, 4.0, 1.0]] for error in errors])
    scores = Measured(("y",), sums, tuple(errors), (0.0,) * len(errors), "none").scores(seed)
    assert scores is not None
    assert scores.top1 is not None
    assert scores.metric is not None
    assert scores.relative_l2.value == pytest.approx(np.sqrt(np.mean(errors)))
    assert scores.metric.value == pytest.approx(np.mean(errors))
    for interval in (scores.relative_l2, scores.cosine, scores.top1, scores.metric):
        assert interval.low <= interval.value <= interval.high
    if len(errors) == 1:
        assert scores.relative_l2.low == scores.relative_l2.high


@pytest.mark.parametrize("columns", [2, 3, 10, 1000])
def test_the_expected_changes_are_those_that_other_errors_make(columns: int) -> None:
    rng = np.random.default_rng(0)
    source = rng.standard_normal((400, columns))

    def moved() -> np.ndarray:
        return source + 0.05 * rng.standard_normal(source.shape)

    changes = [np.count_nonzero(source.argmax(-1) != moved().argmax(-1)) for _ in range(40)]
    expected = [_expected_changes(source, moved()) for _ in range(5)]
    assert np.mean(expected) == pytest.approx(np.mean(changes), rel=0.15)


def test_samples_come_from_files_folders_and_functions(task: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", ids=np.full((1, 2), number))
    assert len(Samples(folder)) == 3
    assert len(Samples([folder, folder / "0.npz", f"{task}:samples"])) == 12
    assert Samples(folder)[2]["ids"].tolist() == [[2, 2]]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportUnknownMemberType]
    assert len(Samples({"ids": np.zeros(2)} for _ in range(5))) == 5


@pytest.mark.medium
def test_the_metric_is_the_mean_over_unseen_samples(model: Path, task: Path) -> None:
    made = sardonyx.quantize(model, to="int8", data=f"{task}:samples", metric=f"{task}:largest")
    assert made.loss.metric is not None
    assert made.loss.scores is not None
    assert made.loss.scores.metric is not None
    assert made.loss.metric.function == f"{task}:largest"
    drop = made.loss.metric.source - made.loss.metric.result
    assert made.loss.scores.metric.value == pytest.approx(drop)
    assert (made.loss.samples, made.data.weak) == (4, "judged on 4 samples; the interval needs about 20")


def test_an_array_without_a_name_is_no_sample(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.int64))
    with pytest.raises(sardonyx.UsageError, match="it holds one array, without the name of an input") as error:
        sardonyx.quantize(model, to="int8", data=tmp_path / "x.npy")
    assert error.value.hint == "write them with numpy.savez"
