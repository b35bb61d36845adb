"""(i + 2) - 1 => i + 1.

For integers and constant numbers. Refuses if the first sum is read elsewhere. Helps because positions are shifted
twice: once so that padding has no position, once for the reserved rows of a table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import producer_of, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class MergeIntegerSums(NodePass):
    """Two consecutive additions of constants to integers."""

    accuracy = Accuracy.EXACT
    roots = ("Add", "Sub")
    opset = 7
    example = Example(
        before="""
            (int64[N] x) => (int64[N] y)
            <int64 one = {1}, int64[1] two = {2}> { a = Abs(x)  b = Sub(a, one)  y = Add(two, b) }
        """,
        after="{ a = Abs(x)  y = Add(a, one) }",
        near_miss="""
            (int64[N] x) => (int64[N] y, int64[N] b)
            <int64 one = {1}, int64[1] two = {2}> { a = Abs(x)  b = Sub(a, one)  y = Add(two, b) }
        """,
        refusal="read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        between, second = required(_shift(node, graph))
        inner = required(producer_of(between, node, ("Add", "Sub")))
        source, first = required(_shift(inner, graph))
        require(graph.sole_consumer(between) is node, "the first sum is read elsewhere", inner, node)
        total, dtype = first + second, required(graph.dtype(node.outputs[0]))
        require(-(2**31) < total < 2**31)
        shift = np.array(total, dtype.numpy())
        return Match((inner, node), build=lambda op: op.Add(source, op.constant(shift, "shift")))


def _shift(node: ir.Node, graph: Facts) -> tuple[ir.Value, int] | None:
    """Return the operand and the number added to it, if the number does not change the shape."""
    for side in (0, 1) if node.op_type == "Add" else (1,):
        number, value = graph.scalar(node.inputs[side]), node.inputs[1 - side]
        if isinstance(number, int) and value is not None and graph.dtype(value) in _INTEGERS:
            is_kept = graph.same_shape(value, node.outputs[0])
            return (value, number if node.op_type == "Add" else -number) if is_kept else None
    return None
