"""Random models pass, and the fuzzer detects and reduces a planted fault."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import fuzz
from fuzzing import comparing, families, judging, running, shrinking
from fuzzing.draft import Input, Rejected
from fuzzing.lanes import Lane
from sardonyx.passes.norms.merge_clips import MergeClips

FIRST = 500_000  # fixed, so that a failure is reproducible

CLIPS = """
    <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    agraph (float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] other)
    <float low = {-1}, float high = {6}, float four = {4}, float[4] w = {1, -2, 3, 0.5}> {
        a = Mul(x, w)
        b = Sub(a, z)
        c = Clip(b, low, high)
        d = Clip(c, low, four)
        e = Tanh(z)
        f = Add(d, e)
        g = Abs(f)
        y = Sub(g, w)
        h = Exp(e)
        other = Mul(h, w)
    }
"""

SOFTMAX = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N, 3] x) => (float[N, 3] y) { p = Softmax <axis = -1> (x)  y = Neg(p) }
"""


def source(text: str, **arrays: np.ndarray) -> judging.Source:
    return judging.Source(onnx.parser.parse_model(text), [("normal", arrays)])


# ---------------------------------------------------------------------------------------------- the models


@pytest.mark.slow
def test_150_random_models_pass() -> None:
    reports = fuzz.campaign(range(FIRST, FIRST + 150), 1, None, None, quiet=True)
    assert len(reports) == 150
    assert sum(not each.rejected for each in reports) > 110
    assert {each.family for each in reports if not each.rejected} == set(families.FAMILIES)
    assert not [fault for each in reports for fault in each.faults if fault.grave], fuzz.summary(reports)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_seed_gives_the_same_model_again(family: str) -> None:
    for seed in range(40):
        try:
            first = families.draw(seed, family)
        except Rejected:
            continue
        again = families.draw(seed, family)
        assert first.model == again.model
        assert first.inputs == again.inputs
        return
    raise AssertionError("all rejected")


def test_feeds_vary_every_size_alone_and_together() -> None:
    inputs = [Input("x", np.dtype(np.float32), ("N", "M"))]
    shapes = {feed["x"].shape for _, feed in running.feeds(inputs, {"N": 4, "M": 5}, 0)}
    assert {(4, 5), (0, 0), (1, 1), (2, 2), (7, 7), (0, 5), (4, 0), (1, 5), (4, 7)} <= shapes


@pytest.mark.slow
def test_a_worker_that_dies_is_a_finding_and_the_next_seed_runs() -> None:
    lane = Lane(range(7, 9), fuzz.job("clips", None))
    lane.process.kill()
    lane.process.join()
    lane.stage = "judge"
    (report,) = lane.reports()
    assert (report.seed, report.faults[0].kind) == (7, "died")
    assert lane.left == range(8, 9)
    assert lane.process.is_alive()
    lane.process.kill()


# ---------------------------------------------------------------------------------------------- the detector


def planted(monkeypatch: pytest.MonkeyPatch) -> shrinking.Case:
    """A pass that forgets the upper bound, and a model that it changes."""
    monkeypatch.setattr(MergeClips, "rewrite", lambda _self, match, op: op.Relu(match.nodes[0].inputs[0]))
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((3, 4)).astype(np.float32) * 5 for name in ("x", "z")}
    given = judging.Source(onnx.parser.parse_model(CLIPS), [("normal", feed)])
    (finding, *_) = judging.judge(given).findings
    assert finding.kind == "wrong"
    return shrinking.Case(given.model, feed, finding)


@pytest.mark.medium
def test_a_planted_fault_is_detected_attributed_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    case = planted(monkeypatch)
    assert shrinking.responsible(case) == ("merge-clips",)
    small = shrinking.shrunk(case)
    assert [node.op_type for node in small.model.graph.node] == ["Clip", "Clip"]
    assert len(small.model.graph.input) == len(small.model.graph.output) == 1
    assert shrinking.fails_like(small.finding)(small.model, small.feed)


@pytest.mark.slow
def test_a_finding_is_written_once_for_each_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = planted(monkeypatch)
    generated = families.Drawn("clips", 3, case.model, [], {})
    seen: collections.Counter[object] = collections.Counter()
    faults = [fuzz._fault(case, generated, tmp_path, seen, lambda _stage: None) for _ in range(fuzz.KEPT + 1)]
    assert [bool(each.folder) for each in faults] == [True] * fuzz.KEPT + [False]
    folder = tmp_path / faults[0].folder
    assert onnx.load(folder / "model.onnx").graph.node
    assert np.load(folder / "feeds.npz").files
    assert "merge-clips" in (folder / "README").read_text()


def test_without_the_fault_there_is_no_finding() -> None:
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((3, 4)).astype(np.float32) * 5 for name in ("x", "z")}
    assert not judging.judge(judging.Source(onnx.parser.parse_model(CLIPS), [("normal", feed)])).findings


@pytest.mark.medium
def test_an_exception_and_an_endless_pass_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    case = source(CLIPS, x=np.zeros((1, 4), np.float32), z=np.zeros((1, 4), np.float32))

    def fails(*_: object) -> None:
        raise ZeroDivisionError("planted")

    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(MergeClips, "rewrite", fails)
    (crash,) = judging.judge(case, ["portable"]).findings
    assert crash.kind == "crash"
    assert "planted" in crash.text
    monkeypatch.setattr(MergeClips, "rewrite", endless)
    monkeypatch.setattr(judging, "SECONDS", 1)
    assert [each.kind for each in judging.judge(case, ["portable"]).findings] == ["slow"]


def test_a_file_that_grows_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    case = source(CLIPS, x=np.zeros((1, 4), np.float32), z=np.zeros((1, 4), np.float32))
    monkeypatch.setattr(judging, "SLACK", -1000)
    assert [each.kind for each in judging.judge(case, ["portable"]).findings] == ["size"]


# ---------------------------------------------------------------------------------------------- the comparison


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.array([1, 2], np.float32), np.array([1, 2.1], np.float32)),
        (np.array([1, 2], np.float32), np.array([1, 2], np.float64)),
        (np.array([1, 2], np.float32), np.array([[1, 2]], np.float32)),
        (np.array([1, np.nan], np.float32), np.array([1, 2], np.float32)),
        (np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32)),
        (np.array([1, 2], np.int64), np.array([1, 3], np.int64)),
        ([np.array([1], np.int64)], [np.array([1], np.int64), np.array([2], np.int64)]),
        (np.array(["a"], object), np.array(["b"], object)),
    ],
)
def test_differences_are_detected(x: object, y: object) -> None:
    assert comparing.difference(x, y)
    assert not comparing.difference(x, x)


def test_an_exact_pass_may_not_change_the_sign_of_a_zero() -> None:
    zeros = np.array([0.0, 1.0], np.float32)
    assert comparing.bits_differ(zeros, np.array([-0.0, 1.0], np.float32))
    assert not comparing.bits_differ(zeros, zeros)
    assert comparing.bits_differ(zeros, np.array([0.0, 1.0 + 1e-5], np.float32))


def test_rounding_explains_no_more_than_the_error_of_the_source() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N] x, float[N] z) => (float[N] lost, float[N] kept) { lost = Sub(x, z)  kept = Add(x, z) }
    """
    given = source(text, x=np.array([4000, 8000], np.float32), z=np.array([3999.999, 7999.998], np.float32))
    _, feed, answer = given.answers[0]
    lost, kept = given.rounding.around(feed, answer)
    assert lost is not None
    assert kept is not None
    assert not comparing.difference(answer[0], answer[0] + np.float32(0.0005), lost)
    assert comparing.difference(answer[0], answer[0] + np.float32(1), lost)
    assert comparing.difference(answer[1], answer[1] * np.float32(1.01), kept)


def test_a_fully_masked_row_may_become_0_and_nothing_else() -> None:
    low = -np.inf
    given = source(SOFTMAX, x=np.array([[low, low, low], [1, 2, low]], np.float32))
    _, feed, answer = given.answers[0]
    zeroed = given.zeroed(feed)
    assert np.isnan(answer[0][0]).all()
    assert zeroed is not None
    assert (zeroed[0][0] == 0).all()
    judged = judging.Judged()
    assert not judging._outputs(given, feed, answer, zeroed, judged)
    assert judged.hidden == 1
    mean = [np.where(np.isnan(answer[0]), np.float32(1 / 3), answer[0])]
    assert judging._outputs(given, feed, answer, mean, judged)


def test_an_overflow_of_the_source_is_distinguished_from_a_sum_of_mask_values() -> None:
    square = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float16[N] x) => (float16[N] y) { s = Mul(x, x)  y = Div(x, s) }
    """
    fills = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N] x) => (float[N] y) <float low = {-3.4028235e38}> { s = Add(x, low)  y = Add(s, low) }
    """
    assert comparing.overflows(onnx.parser.parse_model(square), {"x": np.array([300], np.float16)})
    assert not comparing.overflows(onnx.parser.parse_model(square), {"x": np.array([3], np.float16)})
    assert not comparing.overflows(onnx.parser.parse_model(fills), {"x": np.array([3], np.float32)})


def test_the_table_counts_where_passes_apply() -> None:
    reports = [fuzz.Report(1, "clips", fired=("merge-clips",)), fuzz.Report(2, "clips", rejected="no feed runs")]
    assert "1 merge-clips" in fuzz.coverage(reports)
    assert fuzz.summary(reports).splitlines()[1].split()[:3] == ["clips", "2", "1"]


def test_a_source_that_violates_the_standard_is_reported() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (int64[1] m) => (float[] y) <int64[1] front = {0}> {
            axes = Neg(front)  l = Unsqueeze(m, axes)  y = ConstantOfShape(l)
        }
    """
    assert comparing.breaks_the_standard(onnx.parser.parse_model(text), {"m": np.array([2], np.int64)})
    assert not comparing.breaks_the_standard(onnx.parser.parse_model(SOFTMAX), {"x": np.zeros((2, 3), np.float32)})


def test_a_half_precision_rounding_omitted_by_the_runtime_is_no_fault() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        agraph (float16[N, 2] x, float[N, 1] z) => (float[N, 1] y, float[N, 1] other) <int64[1] last = {-1}> {
            m = ReduceMean(x, last)  t = Identity(m)  c = Cast <to = 1> (t)  y = Sub(c, z)  other = Neg(z)
        }
    """
    given = source(text, x=np.array([[5.004, 5.008]], np.float16), z=np.array([[5.004]], np.float32))
    _, feed, answer = given.answers[0]
    exact = np.float32(np.float32(feed["x"]).mean() - feed["z"])
    lost, other = given.rounding.around(feed, answer)
    assert not comparing.difference(answer[0], exact, lost)
    assert comparing.difference(answer[1], answer[1] * np.float32(1.01), other)
