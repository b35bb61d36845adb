"""(i + 2) - 1 => i + 1.

For integers and constant numbers. Refuses if the first sum is read elsewhere. Helps because positions are shifted
twice: once so that padding has no position, once for the reserved rows of a table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class MergeIntegerSums(NodePass):
    """Two consecutive additions of constants to integers."""

    name = "merge-integer-sums"
    accuracy = Accuracy.EXACT
    roots = ("Add", "Sub")
    opset = 7
    example = Example(
        before="""
            agraph (int64[N] x) => (int64[N] y) <int64 one = {1}, int64[1] two = {2}> {
                a = Abs(x)  b = Sub(a, one)  y = Add(two, b)
            }
        """,
        after="agraph (int64[N] x) => (int64[N] y) <int64 one = {1}> { a = Abs(x)  y = Add(a, one) }",
        near_miss="""
            agraph (int64[N] x) => (int64[N] y, int64[N] b) <int64 one = {1}, int64[1] two = {2}> {
                a = Abs(x)  b = Sub(a, one)  y = Add(two, b)
            }
        """,
        refusal="read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        last = _shift(node, graph)
        inner = None if last is None else last[0].producer()
        if last is None or inner is None or operand_producer(node, node.inputs.index(last[0]), ("Add", "Sub")) is None:
            return None
        first = _shift(inner, graph)
        if first is None:
            return None
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the first sum is read elsewhere", (inner, node))
        total, dtype = first[1] + last[1], graph.dtype(node.outputs[0])
        if dtype is None or not -(2**31) < total < 2**31:
            return None
        shift = np.array(total, dtype.numpy())
        return Match((inner, node), build=lambda op: op.Add(first[0], op.constant(shift, "shift")))


def _shift(node: ir.Node, graph: Facts) -> tuple[ir.Value, int] | None:
    """Return the operand and the number added to it, if the number does not change the shape."""
    for side in (0, 1) if node.op_type == "Add" else (1,):
        number, value = graph.scalar(node.inputs[side]), node.inputs[1 - side]
        if isinstance(number, int) and value is not None and graph.dtype(value) in _INTEGERS:
            if not graph.same_shape(value, node.outputs[0]):
                return None
            return value, number if node.op_type == "Add" else -number
    return None
