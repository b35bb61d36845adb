"""Tuning end to end with a given time for every operator: what is chosen, verified, recorded and returned."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx.verbs.optimize.pipeline as pipeline
from optimizer.tuning.simulated_machine import priced, simulate, tuned
from sardonyx.errors import UsageError
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.passes import Example, NodePass
from sardonyx.records import provenance as p
from sardonyx.records.run import Accuracy, Run
from sardonyx.verbs.optimize.pipeline import optimize

# Two independent decomposed operators, and a node to clean up.
LAYERS = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20]>
    agraph (float[2, 3, 4] x) => (float[2, 3, 4] y)
    <float two = {2.0}, float root = {1.4142135}, float one = {1.0}, float half = {0.5}, int64[1] last = {-1},
     float eps = {0.00001}, float[4] scale = {1, 2, 3, 4}, float[4] shift = {0.5, 1, -1, 2}> {
        a = Identity(x)
        mean = ReduceMean(a, last)  d = Sub(a, mean)  dd = Pow(d, two)  var = ReduceMean(dd, last)
        v = Add(var, eps)  s = Sqrt(v)  n = Div(d, s)  m = Mul(n, scale)  norm = Add(m, shift)
        e1 = Div(norm, root)  e2 = Erf(e1)  e3 = Add(e2, one)  e4 = Mul(norm, e3)  y = Mul(e4, half)
    }
""")
for index, node in enumerate(LAYERS.graph.node):
    node.name = f"/layer.{index}/{node.op_type}"  # the nodes are in modules
DECOMPOSED = Counter(node.op_type for node in LAYERS.graph.node if node.op_type != "Identity")
RESIDUAL = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2, 3, 4] x, float[2, 3, 4] skip) => (float[2, 3, 4] y)
    <float[4] scale = {1, 2, 3, 4}, float[4] shift = {0.5, 1, -1, 2}> {
        a = Add(x, skip)  y = LayerNormalization(a, scale, shift)
    }
""")


def operators(run: pipeline.Optimized) -> Counter[str]:
    assert run.model is not None
    return Counter(node.op_type for node in run.model.graph)


def choices(run: Run) -> dict[str, str]:
    assert run.tuning is not None
    return {each.unit: each.choice for each in run.tuning.decisions}


@pytest.mark.slow
def test_faster_fusions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, priced())
    plain, run = optimize(LAYERS), optimize(LAYERS, **tuned())
    assert run.tuning is not None
    assert (run.tuning.chosen, run.tuning.gain) == ("untuned", None)
    assert operators(run) == operators(plain) == {"LayerNormalization": 1, "Gelu": 1}
    assert choices(run)["fuse-gelu"] == choices(run)["fuse-layer-norm"] == "kept"
    source, untuned = run.tuning.standing
    assert (source.ratio, source.nodes, untuned.nodes) == (1.0, run.before.nodes, run.after.nodes)
    assert untuned.ratio == pytest.approx(2 / (run.before.nodes - 1)), "of which one is an Identity"
    assert run.tuning.latency_ratio == untuned.ratio
    assert plain.tuning is None


@pytest.mark.slow
def test_exactly_the_slower_fusion_is_undone_and_the_result_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, priced(Gelu=7.0))
    run = optimize(LAYERS, **tuned())
    assert run.tuning is not None
    assert run.tuning.chosen == "tuned"
    assert operators(run) == {"LayerNormalization": 1, "Div": 1, "Erf": 1, "Add": 1, "Mul": 2}
    assert {unit for unit, choice in choices(run).items() if choice == "undone"} == {"fuse-gelu"}
    assert run.verdict is not None
    assert run.verdict.passed
    assert run.tuning.gain == pytest.approx(6 / 8)
    assert [pace.name for pace in run.tuning.standing] == ["source", "untuned", "tuned"]
    decided = next(each for each in run.tuning.decisions if each.unit == "fuse-gelu")
    assert decided.question is not None
    assert "fuse-gelu" in run.tuning.questions[decided.question].units
    assert Run.from_json(run.to_json()).tuning == run.tuning


@pytest.mark.slow
def test_a_slower_fusion_is_found_beside_a_useful_one_of_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing both is slower, so they must be measured separately."""
    simulate(monkeypatch, priced(Gelu=7.0, ReduceMean=5.0))
    run = optimize(LAYERS, **tuned())
    assert run.tuning is not None
    assert choices(run)["fuse-gelu"] == "undone"
    assert choices(run)["fuse-layer-norm"] == "kept"
    first = run.tuning.questions[0]
    assert (set(first.units), first.finding, first.accepted) == ({"fuse-layer-norm", "fuse-gelu"}, "slower", False)


@pytest.mark.slow
def test_the_source_is_returned_if_every_result_is_slower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Changes that no unit accounts for must not make it slower either; here these are the module tags of nodes."""
    simulate(monkeypatch, lambda operators: 0.001 if operators == DECOMPOSED else 0.002)
    run = optimize(LAYERS, tmp_path / "out.onnx", **tuned())
    assert run.tuning is not None
    assert run.tuning.chosen in ("source", "tuned")
    assert run.tuning.latency_ratio <= 1
    assert operators(run) - Counter(["Identity"]) == DECOMPOSED
    assert run.verdict is not None
    assert run.verdict.passed
    for node in onnx.load(tmp_path / "out.onnx").graph.node:
        assert p.MODULE_PATH in {prop.key for prop in node.metadata_props}


@pytest.mark.medium
def test_the_source_is_returned_if_the_search_did_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, lambda operators: 0.001 if operators == DECOMPOSED else 0.002)
    run = optimize(LAYERS, **tuned(seconds=1e-9))
    assert run.tuning is not None
    assert (run.tuning.chosen, run.tuning.latency_ratio, len(run.events)) == ("source", 1.0, 0)
    assert set(choices(run).values()) == {"not examined"}
    assert set(run.tuning.unexamined) == set(choices(run))
    assert run.after == run.before
    assert run.verdict is not None
    assert run.verdict.passed


@pytest.mark.slow
def test_a_runtime_fusion_is_used_only_if_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fusion that is off by default is added if it is faster here and the target allows it."""
    simulate(monkeypatch, priced(SkipLayerNormalization=0.5))
    run = optimize(RESIDUAL, target="ort", **tuned(verify="off"))
    assert operators(run) == {"SkipLayerNormalization": 1}
    assert choices(run)["fuse-skip-layer-norm"] == "added"
    assert operators(optimize(RESIDUAL, **tuned(verify="off"))) == {"Add": 1, "LayerNormalization": 1}
    simulate(monkeypatch, priced(SkipLayerNormalization=2.0))  # as fast as the two operators
    run = optimize(RESIDUAL, target="ort", **tuned(verify="off"))
    assert operators(run) == {"Add": 1, "LayerNormalization": 1}
    assert choices(run)["fuse-skip-layer-norm"] == "left out"


@pytest.mark.slow
def test_portable_and_runtime_forms_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fusion gets its fastest form: decomposed, standard, or the runtime's own."""
    biased = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        agraph (float[2, 3, 2] x) => (float[2, 3, 2] y)
        <float[2] b = {1, -2}, float root = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            s = Sin(x)  a = Add(s, b)  d = Div(a, root)  e = Erf(d)  f = Add(e, one)  g = Mul(a, f)  y = Mul(g, half)
        }
    """)
    simulate(monkeypatch, priced())
    assert operators(optimize(biased, target="ort", **tuned(verify="off"))) == {"Sin": 1, "BiasGelu": 1}
    simulate(monkeypatch, priced(BiasGelu=3.0))
    assert operators(optimize(biased, target="ort", **tuned(verify="off"))) == {"Sin": 1, "Add": 1, "Gelu": 1}
    simulate(monkeypatch, priced(BiasGelu=9.0, Gelu=9.0))
    assert operators(optimize(biased, target="ort", **tuned(verify="off")))["Erf"] == 1
    simulate(monkeypatch, priced(Gelu=9.0))
    run = optimize(biased, **tuned(verify="off"))
    assert operators(run)["Erf"] == 1
    assert run.model is not None
    assert {node.domain for node in run.model.graph} == {""}


def test_models_that_become_equal_in_the_runtime_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, priced())
    tower = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N] x) => (float[N] y) { a = Identity(x) b = Relu(a) c = Relu(b) y = Sin(c) }
    """)
    run = optimize(tower, **tuned(sizes={"N": 5}), only=["eliminate-identity"])
    assert run.tuning is not None
    (question,) = run.tuning.questions
    assert (question.finding, question.ratio, question.accepted) == ("same kernels", None, False)
    assert run.tuning.sizes == {"N": 5}
    assert "Identity" not in operators(run)


class Wrong(NodePass):
    """-x => |x|, which is wrong."""

    name = "wrong"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)
    example = Example(before="", after="", near_miss="")

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        source = match.root.inputs[0]
        assert source is not None
        return op.Abs(source)


@pytest.mark.slow
def test_a_rewrite_that_verification_rolled_back_stays_rolled_back_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(LAYERS)
    model.graph.node[0].op_type = "Neg"
    loaded = simulate(monkeypatch, priced(Gelu=7.0, Neg=9.0))
    run = optimize(model, **tuned(), passes=[Wrong()])
    assert [each.pass_name for each in run.rolled_back] == ["wrong"]
    assert choices(run)["fuse-gelu"] == "undone"
    assert "wrong" not in choices(run)
    assert not any(operators["Abs"] for operators in loaded), "a wrong model was measured"
    assert run.verdict is not None
    assert run.verdict.passed


def test_invalid_tuning_options_are_refused_before_any_work() -> None:
    phases: list[str] = []

    def note_phase(phase: str, _: float | None) -> None:
        phases.append(phase)

    with pytest.raises(UsageError, match="dry run"):
        optimize(LAYERS, **tuned(dry_run=True), progress=note_phase)
    with pytest.raises(UsageError, match="budget"):
        optimize(LAYERS, **tuned(seconds=0.0), progress=note_phase)
    with pytest.raises(UsageError, match="dynamic dimension"):
        optimize(LAYERS, **tuned(sizes={"seq": 4}), progress=note_phase)
    assert not phases


@pytest.mark.slow
def test_the_tuned_file_computes_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sardonyx.runtime import Session

    simulate(monkeypatch, priced(Gelu=7.0))
    optimize(LAYERS, tmp_path / "tuned.onnx", **tuned())
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)}
    ours, theirs = Session(tmp_path / "tuned.onnx").run(feeds)[0], Session(LAYERS).run(feeds)[0]
    assert isinstance(ours, np.ndarray)
    assert isinstance(theirs, np.ndarray)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert io.load(tmp_path / "tuned.onnx").opset_imports[""] == 20


@pytest.mark.slow
def test_sizes_that_only_runs_find_are_measured_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[samples] x) => (float[windows, 256] y)
        <float[2] sides = {-1.0, 65536.0}> {
            roots = Abs (sides)  numbers = Sqrt (roots)  negative = Neg (numbers)
            first = Constant <value = bool[2] {1, 0}> ()  target = Where (first, negative, numbers)
            shape = Cast <to = 7> (target)  windows = Reshape (x, shape)  y = Relu (windows)
        }
    """)
    simulate(monkeypatch, priced())
    run = optimize(model, **tuned())
    assert run.tuning is not None
    assert run.tuning.sizes["samples"] % 256 == 0
