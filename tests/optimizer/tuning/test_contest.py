"""Tuning of real models in the real runtime: what is loaded and run, and that clear slowdowns are undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.passes import Example, NodePass
from sardonyx.records.run import Accuracy, Run
from sardonyx.runtime.timed import Settings
from sardonyx.verbs.optimize.candidates import RewriteJob
from sardonyx.verbs.optimize.options import OptimizeOptions, TuneOptions
from sardonyx.verbs.optimize.pipeline import optimize, select
from sardonyx.verbs.optimize.tuner import ADDED, Ground, find_units, forbidden_passes, group_units

SIDE = 384


def parsed(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[4, {SIDE}] x) => (float[4, {SIDE}] y) {{ {body} }}'
    )


def ground(folder: Path) -> Ground:
    feeds = {"x": np.ones((4, SIDE), np.float32)}
    return Ground(feeds, Settings(), folder, 0, lambda _phase, _fraction: None)


def test_models_that_the_runtime_optimizes_to_the_same_graph_have_the_same_kernels(tmp_path: Path) -> None:
    load = ground(tmp_path).load
    plain = load(parsed("a = Sin(x) y = Relu(a)"))
    assert plain.kernels.total() == 2
    assert load(parsed("other = Sin(x) i = Identity(other) y = Relu(i)")).kernels == plain.kernels
    assert load(parsed("a = Relu(x) y = Sin(a)")).kernels == plain.kernels
    assert load(parsed("a = Sin(x) y = Neg(a)")).kernels != plain.kernels
    assert load(parsed("a = Sin(x) b = Relu(a) y = Neg(b)")).kernels != plain.kernels
    assert plain.run() > 0
    assert not list(tmp_path.iterdir()), "profiles are left behind"


def test_a_model_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    bad = parsed("a = Sin(x) y = Relu(a)")
    bad.graph.node[0].domain = "nobody.knows"
    with pytest.raises(RuntimeFailure):
        ground(tmp_path).load(bad)


class Costly(NodePass):
    """Relu(x) => Relu(x) times the unit matrix, many times: the same function at thousands of times the cost."""

    name = "costly"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Relu",)
    example = Example(before="", after="", near_miss="")

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        unit = op.constant(np.eye(SIDE, dtype=np.float32))
        value = op.Max(match.root.inputs[0], op.constant(np.zeros((), np.float32)))
        for _ in range(60):
            value = op.MatMul(value, unit)
        return value


@pytest.mark.campaign
def test_a_clear_slowdown_is_never_returned(tmp_path: Path) -> None:
    """It is undone by the search, or the source is returned if the machine is too busy to measure."""
    path = tmp_path / "tuned.onnx"
    run = optimize(
        parsed("a = Sin(x) y = Relu(a)"),
        path,
        passes=[Costly()],
        only=["costly"],
        tune=TuneOptions(seconds=8),
        options=OptimizeOptions(allow_growth=True),
    )
    assert run.tuning is not None
    assert run.tuning.chosen in ("tuned", "source")
    assert sorted(node.op_type for node in onnx.load(path).graph.node) == ["Relu", "Sin"]
    assert run.verdict is not None
    assert run.verdict.passed
    untuned = next(pace for pace in run.tuning.standing if pace.name == "untuned")
    assert (untuned.finding, untuned.nodes) == ("slower", 62)
    assert Run.from_json(run.to_json()).tuning == run.tuning


def test_a_real_model_is_tuned_and_verified(small_model: Callable[[str, str], Path]) -> None:
    """The choices depend on the machine; the record is consistent on every machine."""
    run = optimize(small_model("bert", "torchscript"), target="ort", tune=TuneOptions(seconds=6))
    tuning = run.tuning
    assert tuning is not None
    assert run.verdict is not None
    assert run.verdict.passed
    assert tuning.sizes
    assert {each.choice for each in tuning.decisions} <= {"kept", "undone", "added", "left out", "not examined"}
    assert set(tuning.unexamined) == {each.unit for each in tuning.decisions if each.question is None}
    for question in tuning.questions:
        assert (question.ratio is None) == (question.finding in ("same kernels", "cannot run"))
        assert question.ratio is None or (question.low or 0) <= question.ratio <= (question.high or 0)
    chosen = next(pace for pace in tuning.standing if pace.name == tuning.chosen)
    assert chosen.nodes == run.after.nodes
    assert chosen.finding != "slower"
    assert run.fingerprint is not None
    assert run.fingerprint.family == "encoder"


def test_units_are_the_passes_that_changed_the_model(small_model: Callable[[str, str], Path]) -> None:
    job = RewriteJob(small_model("bert", "torchscript"), select("ort"), "ort", lambda _phase, _fraction: None)
    candidate = job.candidate()
    tuning_units = find_units(candidate, job.passes, ["fuse-skip-layer-norm"])
    covered = [name for unit in tuning_units for name in unit.passes]
    active = {name for name, tally in candidate.log.tallies.items() if tally.rewrites and name != "raise-opset"}
    assert sorted(covered) == sorted({*active, "fuse-skip-layer-norm"})
    by_name = {unit.name: unit for unit in tuning_units}
    assert by_name["fuse-attention"].family == "attention"
    assert "eliminate-dead-nodes" in by_name["cleanup passes"].passes
    assert (by_name["fuse-skip-layer-norm"].family, by_name["fuse-skip-layer-norm"].added) == (ADDED, True)
    assert forbidden_passes(tuning_units, frozenset()) == {("fuse-skip-layer-norm", "*")}
    assert forbidden_passes(tuning_units, frozenset({"fuse-gelu", "fuse-skip-layer-norm"})) == {("fuse-gelu", "*")}
    tried = [unit for group in group_units(tuning_units) for unit in group]
    assert sorted(tried) == sorted(by_name), "each in one group"
    assert tried.index("fuse-attention") < tried.index("fuse-layer-norm") < tried.index("cleanup passes")
    assert len(group_units(tuning_units)) == len({unit.family for unit in tuning_units})
