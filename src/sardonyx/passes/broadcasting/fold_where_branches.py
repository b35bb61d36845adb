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
from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import ExpressionTensor
from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused

_OPERATIONS = ("Add", "Sub", "Mul", "Div", "Max", "Min")  # every engine rounds them alike


class FoldWhereBranches(OperandPass):
    """Arithmetic on a Where between two numbers."""

    name = "fold-where-branches"
    accuracy = Accuracy.EXACT
    roots = _OPERATIONS
    opset = 9  # the first with Where
    example = Example(
        before="""
            agraph (bool[B, S] x) => (float[B, S] y) <float zero = {0}, float low = {-9}, float[1] least = {-3}> {
                a = Not(x)  b = Where(a, zero, low)  y = Max(b, least)
            }
        """,
        after="""
            agraph (bool[B, S] x) => (float[B, S] y) <float zero = {0}, float least = {-3}> {
                a = Not(x)  y = Where(a, zero, least)
            }
        """,
        near_miss="""
            agraph (bool[B, S] x) => (float[B, S] y, float[B, S] b)
            <float zero = {0}, float low = {-9}, float[1] least = {-3}> {
                a = Not(x)  b = Where(a, zero, low)  y = Max(b, least)
            }
        """,
        refusal="read elsewhere",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        choice = operand_producer(node, index, ("Where",))
        if choice is None or len(node.inputs) != 2 or not _is_number(number := node.inputs[1 - index], graph):
            return None
        if not graph.same_shape(choice.inputs[0], node.outputs[0]):  # the number may determine the shape
            return None
        if not all(_is_number(operand(choice, branch), graph) for branch in (1, 2)):
            return None
        if graph.sole_consumer(choice.outputs[0]) is not node:
            return Refused("the Where is read elsewhere", (choice, node))
        first, second = (_fold(node, index, operand(choice, branch), number, graph) for branch in (1, 2))
        if first is None or second is None:
            return Refused("the sign of a zero may change", (choice, node))
        return Match(
            (choice, node),
            build=lambda op: op.Where(choice.inputs[0], op.constant(first, "branch"), op.constant(second, "branch")),
        )


def _is_number(value: ir.Value | None, graph: Facts) -> bool:
    """Return whether a value is a single float of rank 0 or 1, which does not affect the shape of a result."""
    return (
        graph.scalar(value) is not None
        and (graph.rank(value) or 0) <= 1
        and graph.dtype(value) in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
    )


def _fold(
    node: ir.Node, index: int, branch: ir.Value | None, number: ir.Value | None, graph: Facts
) -> ir.TensorProtocol | None:
    """Apply the operator to the two numbers, or return None if the runtime may return a zero of the other sign.

    One operation in double precision, rounded again, is that operation in a type of at most half the precision.
    """
    tensors = (graph.tensor(branch), graph.tensor(number))
    operands = [known(tensor).reshaped(()) for tensor in tensors if tensor is not None]
    assert tensors[0] is not None
    dtype, (branch_number, other_number) = tensors[0].dtype, (operand.numpy() for operand in operands)
    definition = Expression(node.op_type, tuple(operands if index == 0 else operands[::-1])).cast(dtype)
    result = definition.numpy()
    opposite = node.op_type in ("Max", "Min") and branch_number == 0 and _is_negative_zero(other_number)
    if opposite or _is_negative_zero(branch_number) or _is_negative_zero(result):
        return None
    return ExpressionTensor(definition, dtype, (), result)


def _is_negative_zero(number: np.ndarray) -> bool:
    return bool(number == 0 and np.signbit(number))
