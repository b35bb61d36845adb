"""One size budget for a run: the result is hardly larger than its source, unless growth is allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import sardonyx
from passes.util import graph_text, op_types, reasons, run_passes
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Builder, Match, NodeRule, Replacement
from sardonyx.ir.size_budget import SLACK_BYTES, Growth, allowance, tensor_bytes
from sardonyx.records.run import Accuracy
from sardonyx.verbs.optimize.pipeline import Optimized

BUDGET = "exceed the size budget"


class Store(NodeRule):
    """Relu(x) => Max(x, zeros), with a given number of zeros."""

    name = "store"
    accuracy = Accuracy.EXACT
    roots = ("Relu",)

    def __init__(self, count: int) -> None:
        self._count = count

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        return op.Max(match.root.inputs[0], op.constant(np.zeros(self._count, np.float32)))


def ladder(height: int, width: int) -> ir.Model:
    steps = " ".join(f"r{i} = Relu({f'r{i - 1}' if i else 'x'})" for i in range(height))
    text = f"agraph (float[N, {width}] x) => (float[N, {width}] y) {{ {steps} y = Exp(r{height - 1}) }}"
    model = io.from_proto(onnx.parser.parse_model(graph_text(text)))
    origins.attach(model)
    return model


def test_a_pass_cannot_grow_the_file_beyond_its_budget() -> None:
    model = ladder(40, 1000)
    facts = Facts(model, growth=Growth(allowance(model)))
    log = Rewriter(facts, [Store(1000)]).run()
    stored = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    assert 0.9 * SLACK_BYTES < stored <= SLACK_BYTES
    assert len(log.events) == stored // 4000
    assert {refusal.reason for refusal in log.refusals} == {"it would exceed the size budget of the file"}


def test_without_a_limit_all_rewrites_are_applied() -> None:
    model, log = run_passes(io.to_proto(ladder(40, 1000)), [Store(1000)])
    assert op_types(model).count("Max") == 40
    assert not reasons(log)


def folded(rows: int) -> onnx.ModelProto:
    """Tables that are looked up with constants: the result is larger than table and indices together."""
    nodes, weights, value = list[onnx.NodeProto](), list[onnx.TensorProto](), "x"
    for index in range(rows):
        picks = np.arange(2000, dtype=np.int64) % 4
        table = np.random.default_rng(index).standard_normal((4, 8)).astype(np.float32)
        weights += [numpy_helper.from_array(picks, f"p{index}"), numpy_helper.from_array(table, f"t{index}")]
        nodes.append(helper.make_node("Gather", [f"t{index}", f"p{index}"], [f"g{index}"]))
        nodes.append(helper.make_node("Mul", [value, f"g{index}"], [value := f"v{index}"]))
    interface = [helper.make_tensor_value_info(name, 1, ["N", 2000, 8]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "tables", interface[:1], interface[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _optimized(proto: onnx.ModelProto, folder: Path, *, allow_growth: bool = False) -> tuple[Optimized, int, int]:
    source, result = folder / "source.onnx", folder / "result.onnx"
    source.write_bytes(proto.SerializeToString())
    run = sardonyx.optimize(source, result, verify="off", options=sardonyx.OptimizeOptions(allow_growth=allow_growth))
    made = onnx.ModelProto.FromString(result.read_bytes())
    for node in made.graph.node:
        del node.metadata_props[:]
    for tensor in made.graph.initializer:
        del tensor.metadata_props[:]
    del made.metadata_props[:], made.graph.metadata_props[:]
    return run, source.stat().st_size, made.ByteSize()


def test_the_result_is_within_its_budget_unless_growth_is_allowed(tmp_path: Path) -> None:
    run, before, after = _optimized(folded(12), tmp_path)
    assert after <= before * 1.01 + SLACK_BYTES
    assert run.after.nodes > 12
    assert any(GROWN in note for note in run.notes) == (after > before * 1.01)


GROWN = "the file grew by"


def test_growth_is_allowed_on_request_and_reported(tmp_path: Path) -> None:
    run, before, after = _optimized(folded(12), tmp_path, allow_growth=True)
    assert after > before * 1.01 + SLACK_BYTES
    assert run.after.nodes == 12
    (note,) = [note for note in run.notes if GROWN in note]
    assert "fold-constants" in note


def test_a_weight_that_is_replaced_does_not_count(tmp_path: Path) -> None:
    """A large weight is stored in another layout, and the pass removes the old one."""
    weight = np.random.default_rng(0).standard_normal((400, 300)).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    interface = [helper.make_tensor_value_info(name, 1, ["N", width]) for name, width in (("x", 300), ("y", 400))]
    graph = helper.make_graph(nodes, "one", interface[:1], interface[1:], [numpy_helper.from_array(weight, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "w.onnx").write_bytes(proto.SerializeToString())
    run = sardonyx.optimize(tmp_path / "w.onnx", verify="off", only=["fold-weight-views"])
    assert run.after.nodes == 1
    assert run.model is not None
    assert len(run.model.graph.initializers) == 1


@pytest.mark.parametrize(
    ("tensor", "most"),
    [
        (helper.make_tensor("w", onnx.TensorProto.INT64, [1000], np.ones(1000, np.int64)), 1100),
        (helper.make_tensor("w", onnx.TensorProto.FLOAT, [1000], np.ones(1000, np.float32)), 4100),
    ],
)
def test_a_tensor_counts_with_its_stored_size(tensor: onnx.TensorProto, most: int) -> None:
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", tensor.data_type, [1000])], [tensor])
    value = io.from_proto(helper.make_model(graph)).graph.initializers["w"].const_value
    assert value is not None
    assert 1000 <= tensor_bytes(value) <= most
