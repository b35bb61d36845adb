"""Incorrect passes: the driver refuses rewrites that change types, shapes, scopes or stored numbers, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.util import assert_same, graph_text, op_types, parse, reasons, run_passes
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, NodeRule, Replacement
from sardonyx.ir.tensors import ComputedTensor
from sardonyx.passes.cleanup.eliminate_cast_like import EliminateCastLike
from sardonyx.records.run import Accuracy

Rewrite = Callable[[Match, Builder], Replacement]


class Hostile(NodeRule):
    """Replaces every Neg by the result of a given function."""

    name = "hostile"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        return self._rewrite(match, op)


def source(match: Match) -> ir.Value:
    value = match.root.inputs[0]
    assert value is not None
    return value


def declare_wrong_type(match: Match, op: Builder) -> ir.Value:
    """Declare a type that the node does not produce."""
    return op.Cast(op.learn(op.Cast(source(match), to=10), ir.DataType.FLOAT, None), to=1)


def infinite(match: Match, op: Builder) -> ir.Value:
    return op.Mul(source(match), op.constant(np.array([np.inf, 1, 1], np.float32)))


def lazy_nan(match: Match, op: Builder) -> ir.Value:
    """A constant that is computed only when it is written is checked too."""
    lazy = ComputedTensor(ir.DataType.FLOAT, [3], lambda: np.array([1, np.nan, 1], np.float32))
    return op.Mul(source(match), op.constant(lazy))


TEXT = graph_text("agraph (float[N, 3] x) => (float[N, 3] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }")


CASES: list[tuple[Rewrite, str]] = [
    (lambda match, op: op.Cast(source(match), to=10), "the result would be float16 and not float"),
    (lambda match, op: op.Greater(source(match), source(match)), "the result would be bool and not float"),
    (lambda match, op: op.Unsqueeze(source(match), op.constant(np.array([0]))), "another shape"),
    (lambda match, op: op.Concat(source(match), source(match), axis=1), "another shape"),
    (lambda match, op: op.Concat(source(match), op.constant(np.ones((1, 3), np.float32)), axis=0), "another shape"),
    (lambda match, op: op.constant(np.ones(3, np.float32)), "another shape"),
    (lambda match, op: op.constant(np.ones((2, 3), np.int64)), "the result would be int64 and not float"),
    (lambda match, op: op.Add(source(match), op.constant(np.ones(3))), "Add does not accept double there"),
    (lambda match, op: op.And(source(match), source(match)), "And does not accept float there"),
    (
        lambda match, op: op.Cast(op.Gelu(op.Cast(source(match), to=11)), to=1),
        "ONNX Runtime has no Gelu for double",
    ),
    (declare_wrong_type, "an intermediate value would be float and not float16"),
    (infinite, "a new constant holds infinities or NaN"),
    (lazy_nan, "a new constant holds infinities or NaN"),
    (
        lambda match, op: op.Mul(source(match), op.constant(np.full(3, 1e-42, np.float32))),
        "a new constant holds subnormal numbers",
    ),
    (lambda match, op: op.folded(np.array(1e300), ir.DataType.FLOAT), "overflow or lose precision in float"),
    (lambda match, op: match.root.outputs[0], "replaces a value by itself"),
    (lambda match, op: [source(match), source(match)], "a different number of values"),
    (lambda match, op: op.Neg(ir.Value(name="nowhere")), "a value that is not in any graph"),
]


@pytest.mark.parametrize(("rewrite", "reason"), CASES)
def test_a_hostile_rewrite_is_refused_with_a_reason(rewrite: Rewrite, reason: str) -> None:
    text = TEXT.replace("18]", "20]")
    model, log = run_passes(text, [Hostile(rewrite)], may_undo=True)
    assert op_types(model) == ["Relu", "Neg", "Exp"]
    assert not log.events
    (actual,) = reasons(log)
    assert reason in actual
    assert_same(text, model)


BODIES = graph_text("""agraph (float[2] x, bool c) => (float[2] y, float[2] z) {
    y = If (c) <
        then_branch = one () => (float[2] r) { i = Abs(x)  r = Exp(i) },
        else_branch = two () => (float[2] r) { i = Relu(x)  r = Exp(i) }
    >
    a = Relu(x)  z = Neg(a)
}""")


def test_a_value_of_a_body_does_not_leave_it() -> None:
    def inner(match: Match, op: Builder) -> Replacement:
        graph = match.root.graph
        assert graph is not None
        body = next(node for node in graph if node.op_type == "If").attributes["then_branch"].as_graph()
        return op.Neg(body[0].outputs[0])

    model, log = run_passes(BODIES, [Hostile(inner)])
    assert reasons(log) == ["it reads a value of a graph that does not enclose it"]
    assert_same(BODIES, model, feeds={"x": np.ones(2, np.float32), "c": np.array(True)})


def test_a_rewrite_builds_no_bodies() -> None:
    def build(match: Match, op: Builder) -> Replacement:
        value = ir.val("x", dtype=ir.DataType.FLOAT, shape=[2])
        node = ir.node("Abs", [source(match)])
        body = ir.Graph([value], node.outputs, nodes=[node], name="body")
        return op.node("If", tuple(match.root.inputs), {"then_branch": body, "else_branch": body})

    _, log = run_passes(TEXT, [Hostile(build)])
    assert reasons(log) == ["a rewrite cannot create subgraphs"]


def test_infinities_of_the_source_are_allowed() -> None:
    """The weight is infinite before the rewrite."""
    text = graph_text("""agraph (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1, 1}> {
        a = Mul(x, w)  b = Neg(a)  y = Exp(b)
    }""")
    proto = parse(text)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([np.inf, 1], np.float32), "w"))

    class Merge(Hostile):
        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            producer = source(Match((node,))).producer()
            assert producer is not None
            return Match((producer, node))

    def merge(match: Match, op: Builder) -> Replacement:
        return op.Mul(match.nodes[0].inputs[0], op.constant(np.array([-np.inf, -1], np.float32)))

    _, log = run_passes(proto, [Merge(merge)])
    assert [event.pass_name for event in log.events] == ["hostile"]


def test_a_source_without_kernels_keeps_its_fusions() -> None:
    """The result needs a kernel only if the source had one."""
    text = graph_text("agraph (bfloat16[N] x) => (bfloat16[N] y) { a = Relu(x)  y = Neg(a) }", 20)
    model, _ = run_passes(text, [Hostile(lambda match, op: op.Gelu(source(match)))])
    assert op_types(model) == ["Relu", "Gelu"]


def test_types_that_a_function_declares_hold_for_one_call_only() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
        g (float[2] x, int64[4] w) => (float[2] y, int64[4] z) { y = my.F(x)  z = my.F(w) }
        <domain: "my", opset_import: ["" : 18]>
        F (x) => (y) { k = Constant <value_float = 2.5> ()  kk = CastLike(k, x)  y = Mul(x, kk) }"""
    proto = parse(text)
    for name in ("x", "kk", "y"):
        proto.functions[0].value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]))
    model, _ = run_passes(proto, [EliminateCastLike()])
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "CastLike", "Mul"]
