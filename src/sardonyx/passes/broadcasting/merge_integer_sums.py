"""(i + 2) - 1 => i + 1.

For integers and constant numbers. Refuses if the first sum is read elsewhere. Helps because positions are shifted
twice: once so that padding has no position, once for the reserved rows of a table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import producer_of, require, required, value_and_scalar
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
        between, second = _shift(node, graph)
        inner = required(producer_of(between, node, ("Add", "Sub")))
        source, first = _shift(inner, graph)
        require(graph.sole_consumer(between) is node, "the first sum is read elsewhere", inner, node)
        total, dtype = first + second, required(graph.dtype(node.outputs[0]))
        require(-(2**31) < total < 2**31)
        shift = np.array(total, dtype.numpy())
        return Match((inner, node), build=lambda op: op.Add(source, op.constant(shift, "shift")))


def _shift(node: ir.Node, graph: Facts) -> tuple[ir.Value, int]:
    """Return an integer operand and the number that is added to it."""
    value, number = required(value_and_scalar(node, graph, *((0, 1) if node.op_type == "Add" else (1,))))
    require(graph.dtype(value) in _INTEGERS)
    return value, int(number if node.op_type == "Add" else -number)
