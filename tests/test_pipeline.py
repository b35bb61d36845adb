"""The pipeline end to end: verification, rollback of exactly what is wrong, and never a wrong file."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from msgspec.structs import replace

from sardonyx.errors import OutputError, UsageError
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.passes import Example, NodePass
from sardonyx.records import provenance as p
from sardonyx.records.run import Accuracy, Run, Verdict
from sardonyx.verbs.optimize import details
from sardonyx.verbs.optimize.options import OptimizeOptions
from sardonyx.verbs.optimize.pipeline import WHOLE_PASS, optimize

NOTHING = Example(before="", after="", near_miss="")
TOWER = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N, 4] x) => (float[N, 4] y) {
        a = Relu(x)
        b = Identity(a)
        c = Neg(b)
        d = Identity(c)
        e = Exp(d)
        f = Identity(e)
        y = Sqrt(f)
    }
"""


def tagged_tower() -> onnx.ModelProto:
    """The same model with the names that torch's exporter gives to nodes of a module `tower`."""
    proto = onnx.parser.parse_model(TOWER)
    for index, node in enumerate(proto.graph.node):
        node.name = f"/tower/{node.op_type}_{index}"
    return proto


class Wrong(NodePass):
    """-x => x, which is always wrong."""

    name = "wrong"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)
    example = NOTHING

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        source = match.root.inputs[0]
        assert source is not None
        return source


class RightButOnce(NodePass):
    """-x => x * -1, but |x| where the node is the one called `broken`."""

    name = "right-but-once"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)
    example = NOTHING

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        source = match.root.inputs[0]
        if match.root.outputs[0].name == "broken":
            return op.Abs(source)
        return op.Mul(source, op.constant(np.array(-1, np.float32)))


def chain(length: int, broken: int) -> onnx.ModelProto:
    """Negations with a Sin between each, so that each one affects the output."""
    names = [f"r{i}" if i != broken else "broken" for i in range(length)]
    nodes, last = [], "x"
    for i, name in enumerate(names):
        nodes += [f"s{i} = Sin({last})", f"{name} = Neg(s{i})"]
        last = name
    text = '<ir_version: 10, opset_import: ["" : 18]> agraph (float[N] x) => (float[N] y) {%s y = Sin(%s)}'
    return onnx.parser.parse_model(text % ("\n".join(nodes), last))


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["end", "each"])
def test_exactly_the_wrong_rewrite_is_undone(mode: Any) -> None:
    run = optimize(chain(20, broken=13), verify=mode, passes=[RightButOnce()], only=["right-but-once"])
    assert run.verdict is not None
    assert run.verdict.passed
    (undone,) = run.rolled_back
    assert (undone.pass_name, undone.root) == ("right-but-once", "broken")
    assert undone.reason
    ops = {each.op_type: each.after for each in run.ops}
    assert (ops.get("Mul"), ops.get("Neg"), ops.get("Abs")) == (19, 1, None)


def test_the_wrong_rewrite_is_searched_with_the_trials_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.verification import Oracle
    from sardonyx.verification.rewrite_check import LocalChecks

    verdicts: list[Verdict] = []

    def check(*given: Any, **options: Any) -> Verdict:
        verdicts.append(original(*given, **options))
        return verdicts[-1]

    original = Oracle.check
    monkeypatch.setattr(Oracle, "check", check)
    monkeypatch.setattr(LocalChecks, "observe", lambda *_: None)  # otherwise the check of single rewrites finds it
    run = optimize(chain(20, broken=13), passes=[RightButOnce()], only=["right-but-once"])
    assert [each.root for each in run.rolled_back] == ["broken"]
    first, *probes, last = verdicts
    failed = [trial.style for trial in first.trials if not trial.passed]
    assert 0 < len(failed) < len(first.trials) == len(last.trials)
    assert probes
    assert all([trial.style for trial in probe.trials] == failed for probe in probes)


def negations(length: int) -> onnx.ModelProto:
    """Negations with an Elu between each, so that two wrong ones do not cancel."""
    nodes = "\n".join(f"n{i} = Neg({'x' if not i else f's{i - 1}'}) s{i} = Elu(n{i})" for i in range(length))
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) {%s y = Elu(s%d) }'
    return onnx.parser.parse_model(text % (nodes, length - 1))


def test_a_pass_that_is_wrong_repeatedly_is_disabled() -> None:
    run = optimize(negations(9), passes=[Wrong()])
    assert [(each.pass_name, each.root) for each in run.rolled_back] == [("wrong", WHOLE_PASS)]
    assert run.after == run.before


@pytest.mark.parametrize(("wrong", "whole"), [(2, False), (3, True), (5, True)])
def test_a_pass_that_fails_in_three_rounds_is_disabled(
    wrong: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each verification of the whole model finds one wrong rewrite; two are rolled back one by one."""
    from sardonyx.verification.rewrite_check import LocalChecks

    monkeypatch.setattr(LocalChecks, "observe", lambda *_: None)  # otherwise all are found at once
    run = optimize(negations(wrong), passes=[Wrong()], only=["wrong"])
    undone = [(each.pass_name, each.root) for each in run.rolled_back]
    assert sorted(undone) == ([("wrong", WHOLE_PASS)] if whole else [("wrong", f"n{i}") for i in range(wrong)])
    assert run.after == run.before


def test_other_passes_continue_beside_a_wrong_one() -> None:
    run = optimize(onnx.parser.parse_model(TOWER), passes=[Wrong()])
    assert [each.pass_name for each in run.rolled_back] == ["wrong"]
    assert {each.op_type: each.after for each in run.ops}.get("Identity", 0) == 0
    assert {each.op_type: each.after for each in run.ops}["Neg"] == 1


def test_without_verification_a_wrong_rewrite_is_kept() -> None:
    """The counterpart: only verification detects it."""
    run = optimize(onnx.parser.parse_model(TOWER), verify="off", passes=[Wrong()], only=["wrong"])
    assert run.verdict is None
    assert run.after.nodes == run.before.nodes - 1


def test_the_source_is_never_changed(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(TOWER)
    before = proto.SerializeToString()
    optimize(proto)
    assert proto.SerializeToString() == before
    model = ir.from_proto(proto)
    optimize(model)
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(ir.from_proto(proto)).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(before)
    optimize(path, tmp_path / "small.onnx")
    assert path.read_bytes() == before


def test_all_three_kinds_of_source_give_the_same_result(tmp_path: Path) -> None:
    proto = tagged_tower()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    results = [optimize(source).model for source in (path, proto, ir.from_proto(proto))]
    assert all(model is not None for model in results)
    assert len({io.to_proto(model).SerializeToString() for model in results if model is not None}) == 1


def test_the_record_reads_back(tmp_path: Path) -> None:
    path, small = tmp_path / "m.onnx", tmp_path / "s.onnx"
    path.write_bytes(onnx.parser.parse_model(TOWER).SerializeToString())
    run = optimize(path, small)
    again = Run.from_json(run.to_json())
    assert again.to_json() == run.to_json()
    assert (again.source.sha256, again.result.sha256) == (io.sha256_of(path), io.sha256_of(small))
    assert again.before.nodes - again.after.nodes == 3
    replaced = optimize(path, path, force=True)  # the hash of the source is of the file before
    assert (replaced.source.sha256, replaced.result.sha256) == (run.source.sha256, io.sha256_of(path))


def test_what_only_reports_need_is_computed_on_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, small = tmp_path / "m.onnx", tmp_path / "s.onnx"
    proto = onnx.parser.parse_model(TOWER)
    path.write_bytes(proto.SerializeToString())
    calls: list[str] = []
    describe = details.describe
    monkeypatch.setattr(details, "describe", lambda *args: calls.append("described") or describe(*args))
    run = optimize(path, small, verify="off")
    assert not calls
    path.write_bytes(b"")  # the record is about what was read
    assert run.wiring_before is not None
    assert run.wiring_after is not None
    assert (len(run.wiring_before.names), len(run.wiring_after.names)) == (run.before.nodes, run.after.nodes)
    assert run.fingerprint is not None
    assert replace(run, notes=("changed",)).attention == run.attention
    assert len(calls) == 1
    in_memory = optimize(proto, verify="off")  # a caller may change it later
    assert len(calls) == 2
    del proto.graph.node[:]
    assert in_memory.wiring_before == run.wiring_before
    assert Run.from_json(in_memory.to_json()).wiring_after == in_memory.wiring_after


def test_every_node_of_the_result_has_an_owner(tmp_path: Path) -> None:
    small, untagged = tmp_path / "s.onnx", tmp_path / "u.onnx"
    optimize(tagged_tower(), small)
    for node in onnx.load(small).graph.node:
        props = {prop.key: prop.value for prop in node.metadata_props}
        assert p.MODULE_PATH in props
        assert p.SOURCE_MODULE in props
    run = optimize(onnx.parser.parse_model(TOWER), untagged)
    assert p.UNTAGGED in run.notes
    assert [module.path for module in run.modules] == [p.ROOT]
    assert not any(node.metadata_props for node in onnx.load(untagged).graph.node)


def test_an_existing_output_is_refused_before_any_work(tmp_path: Path) -> None:
    small = tmp_path / "s.onnx"
    small.write_bytes(b"precious")
    with pytest.raises(OutputError):
        optimize(onnx.parser.parse_model(TOWER), small)
    assert small.read_bytes() == b"precious"
    optimize(onnx.parser.parse_model(TOWER), small, force=True)
    assert onnx.load(small).graph.output[0].name == "y"


def test_an_unknown_pass_gets_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        optimize(onnx.parser.parse_model(TOWER), only=["eliminate-identify"])
    assert caught.value.hint is not None
    assert "eliminate-identity" in caught.value.hint


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    run = optimize(onnx.parser.parse_model(TOWER), tmp_path / "s.onnx", dry_run=True)
    assert not list(tmp_path.iterdir())
    assert run.verdict is None
    assert len(run.events) == 3


def test_a_model_with_training_info_is_unchanged_with_a_note() -> None:
    proto = onnx.parser.parse_model(TOWER)
    proto.training_info.add().algorithm.name = "step"
    run = optimize(proto, verify="off")
    assert not run.events
    assert "training info" in run.notes[0]
    assert run.model is not None
    assert io.to_proto(run.model).training_info == proto.training_info


@pytest.mark.parametrize(("ir_version", "opset"), [(4, 9), (8, 17), (10, 18), (13, 26), (14, 18)])
def test_versions_stay_those_of_the_source(ir_version: int, opset: int) -> None:
    """Neither newer defaults of the onnx package nor a pass changes them."""
    proto = onnx.parser.parse_model(TOWER)
    proto.ir_version = ir_version
    proto.opset_import[0].version = opset
    run = optimize(proto)
    assert run.model is not None
    result = io.to_proto(run.model)
    assert (result.ir_version, result.opset_import[0].version) == (ir_version, opset)
    assert (run.result.ir_version, run.result.opsets, run.opset_changes) == (ir_version, {"": opset}, {})


@pytest.mark.parametrize("name", ["cnn", "mobilenet"])
def test_torch_metadata_stays_correct(small_model: Callable[[str, str], Path], name: str) -> None:
    """Viewers group by torch's keys: they must name the owner, also where several nodes became one."""
    run = optimize(small_model(name, "dynamo"))
    assert run.verdict is not None
    assert run.verdict.passed
    assert not run.rolled_back
    assert run.model is not None
    merged = 0
    for node in run.model.graph:
        props = node.metadata_props
        *modules, _leaf = ast.literal_eval(props[p.NAME_SCOPES])
        merged += p.MODULE_PATHS in props
        if "_empty_nn_module_stack_from_metadata_hook" not in modules:
            known = [path for path in modules if props[p.MODULE_PATH] == path or props[p.MODULE_PATH].startswith(path)]
            assert known == modules, "a scope that does not contain the owner"
            assert props[p.NAMESPACE].split("/")[len(modules) - 1].startswith(modules[-1] + ": ")
    assert merged, "nothing was fused, so nothing was tested"


RESIDUAL = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2, 3, 4] x, float[2, 3, 4] skip) => (float[2, 3, 4] y)
    <float[4] scale = {1, 2, 3, 4}, float[4] shift = {0.5, 1, -1, 2}> {
        a = Add(x, skip)  y = LayerNormalization(a, scale, shift)
    }
"""


def test_slower_fusions_run_only_on_request() -> None:
    model = onnx.parser.parse_model(RESIDUAL)
    assert optimize(model, target="ort").after.nodes == 2
    fewest = optimize(model, target="ort", options=OptimizeOptions(fewest_nodes=True))
    assert fewest.after.nodes == 1
    assert fewest.verdict is not None
    assert fewest.verdict.passed
    assert optimize(model, target="ort", only=["fuse-skip-layer-norm"]).after.nodes == 1, "asked for by name"
    assert optimize(model, options=OptimizeOptions(fewest_nodes=True)).after.nodes == 2, "not of this target"


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_fused_attention_belongs_to_its_layer_and_the_shared_mask_does_not(
    exporter: str, small_model: Callable[[str, str], Path]
) -> None:
    run = optimize(small_model("bert", exporter), verify="off")
    assert run.model is not None
    owners = {node.op_type: [] for node in run.model.graph}
    for node in run.model.graph:
        owners[node.op_type].append(origins.owner(node))
    assert len(owners["Attention"]) >= 2
    assert all(owner.endswith("attention.self") for owner in owners["Attention"])
    assert len(set(owners["Attention"])) == len(owners["Attention"]), "one each"
    assert not any("layer" in owner for owner in owners["Where"]), "the mask is made once, above the layers"
