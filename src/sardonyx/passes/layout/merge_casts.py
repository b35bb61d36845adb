"""Cast(Cast(x, A), B) => Cast(x, B), if A represents every value of x exactly.

A pair that ends in the type of x is removed. Refuses if the first Cast may round (float to half and back is not the
identity), if a float becomes an integer, since values out of range may then differ, and if the value in between is read
elsewhere. Helps because exporters widen masks and indices step by step.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer
from sardonyx.passes._numbers import FLOATS, INTEGERS, preserves_values
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class MergeCasts(NodePass):
    """Two consecutive casts, the first without loss."""

    name = "merge-casts"
    accuracy = Accuracy.EXACT
    roots = ("Cast",)
    opset = 6  # before, the type was given as a string
    example = Example(
        before="""
            agraph (int32[N] x) => (float[N] y, float[N] z) {
                a = Cast <to = 7> (x)  y = Cast <to = 1> (a)
                b = Cast <to = 1> (x)  c = Cast <to = 11> (b)  d = Cast <to = 1> (c)  z = Neg(d)
            }
        """,
        after="""
            agraph (int32[N] x) => (float[N] y, float[N] z) {
                y = Cast <to = 1> (x)  b = Cast <to = 1> (x)  z = Neg(b)
            }
        """,
        near_miss="agraph (float[N] x) => (float[N] y) { a = Cast <to = 10> (x)  y = Cast <to = 1> (a) }",
        refusal="may round",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = operand_producer(node, 0, ("Cast",))
        source = None if inner is None else operand(inner, 0)
        if inner is None or source is None:
            return None
        nodes = (inner, node)
        dtype = graph.dtype(source)
        through, to = (ir.DataType(cast.attributes.get_int("to", 0)) for cast in nodes)
        if dtype is None:
            return None
        if not preserves_values(dtype, through):
            return Refused("the first cast may round", nodes)
        if to == dtype:
            return Match(nodes, build=lambda _: source)
        if to not in INTEGERS and to not in FLOATS:
            return None
        if dtype in FLOATS and to in INTEGERS:
            return Refused("a float becomes an integer", nodes)
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        return Match(nodes, build=lambda op: op.like(node, (source,)))
