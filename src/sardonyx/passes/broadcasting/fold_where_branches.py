"""Max(Where(c, 0, -inf), -9) => Where(c, 0, -9).

For elementwise operators with one operand a Where between two numbers and the other a number: the operator is applied
to the numbers ahead of time. Refuses if the Where has other consumers, if a branch is or becomes -0.0, whose sign ONNX
Runtime's Where loses, and for Max or Min of 0.0 and -0.0, of which the kernel returns either. Helps because masks are
clipped, scaled and cast after they are built, each time over every pair of positions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.expressions import Expression, known
from sardonyx.ir.tensors import ExpressionTensor
from sardonyx.passes._matching import number_of, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass

_OPERATIONS = ("Add", "Sub", "Mul", "Div", "Max", "Min")  # every engine rounds them alike
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


class FoldWhereBranches(PairPass):
    """Arithmetic on a Where between two numbers."""

    accuracy = Accuracy.EXACT
    roots = _OPERATIONS
    inner = ("Where",)
    read_elsewhere = "the Where is read elsewhere"
    opset = 9  # the first with Where
    example = Example(
        before="""
            (bool[B, S] x) => (float[B, S] y) <float zero = {0}, float low = {-9}, float[1] least = {-3}>
            { a = Not(x)  b = Where(a, zero, low)  y = Max(b, least) }
        """,
        after="<float zero = {0}, float least = {-3}> { a = Not(x)  y = Where(a, zero, least) }",
        near_miss="""
            (bool[B, S] x) => (float[B, S] y, float[B, S] b) <float zero = {0}, float low = {-9}, float[1] least = {-3}>
            { a = Not(x)  b = Where(a, zero, low)  y = Max(b, least) }
        """,
        refusal="read elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        require(len(node.inputs) == 2)
        number, (condition, *branches) = _number(node.inputs[1 - index], graph), inner.inputs
        require(graph.same_shape(condition, node.outputs[0]))  # the number may determine the shape
        numbers = [_number(branch, graph) for branch in branches]
        folded = (_fold(node, index, branch, number) for branch in numbers)
        first, second = (required(branch, "the sign of a zero may change") for branch in folded)
        return Match(
            (inner, node),
            build=lambda op: op.Where(condition, op.constant(first, "branch"), op.constant(second, "branch")),
        )


def _number(value: ir.Value | None, graph: Facts) -> ir.TensorProtocol:
    """Return a single float of rank 0 or 1, which does not affect the shape of a result; anything else is no match."""
    tensor = required(graph.tensor(value))
    require(tensor.dtype in _FLOATS and number_of(value, graph, rank=1) is not None)
    return tensor


def _fold(node: ir.Node, index: int, branch: ir.TensorProtocol, number: ir.TensorProtocol) -> ir.TensorProtocol | None:
    """Apply the operator to the two numbers, or return None if the runtime may return a zero of the other sign.

    One operation in double precision, rounded again, is that operation in a type of at most half the precision.
    """
    own, other = (known(tensor).reshaped(()) for tensor in (branch, number))
    definition = Expression(node.op_type, (own, other) if index == 0 else (other, own)).cast(branch.dtype)
    result = definition.numpy()
    opposite = node.op_type in ("Max", "Min") and own.numpy() == 0 and _is_negative_zero(other.numpy())
    if opposite or _is_negative_zero(own.numpy()) or _is_negative_zero(result):
        return None
    return ExpressionTensor(definition, branch.dtype, (), result)


def _is_negative_zero(number: np.ndarray) -> bool:
    return bool(number == 0 and np.signbit(number))
