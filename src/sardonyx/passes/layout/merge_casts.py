"""Cast(Cast(x, A), B) => Cast(x, B), if A represents every value of x exactly.

A pair that ends in the type of x is removed. Refuses if the first Cast may round (float to half and back is not the
identity), if a float becomes an integer, since values out of range may then differ, and if the value in between is read
elsewhere. Helps because exporters widen masks and indices step by step.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import require, require_sole, required
from sardonyx.passes._numbers import FLOATS, INTEGERS, preserves_values
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass


class MergeCasts(PairPass):
    """Two consecutive casts, the first without loss."""

    accuracy = Accuracy.EXACT
    roots = inner = ("Cast",)
    opset = 6  # before, the type was given as a string
    example = Example(
        before="""
            (int32[N] x) => (float[N] y, float[N] z) {
                a = Cast <to = 7> (x)  y = Cast <to = 1> (a)
                b = Cast <to = 1> (x)  c = Cast <to = 11> (b)  d = Cast <to = 1> (c)  z = Neg(d)
            }
        """,
        after="{ y = Cast <to = 1> (x)  b = Cast <to = 1> (x)  z = Neg(b) }",
        near_miss="(float[N] x) => (float[N] y) { a = Cast <to = 10> (x)  y = Cast <to = 1> (a) }",
        refusal="may round",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        source, nodes = required(inner.inputs[0]), (inner, node)
        dtype = required(graph.dtype(source))
        through, to = (ir.DataType(cast.attributes.get_int("to", 0)) for cast in nodes)
        require(preserves_values(dtype, through), "the first cast may round")
        if to == dtype:
            return Match(nodes, build=lambda _: source)
        require(to in INTEGERS or to in FLOATS)
        require(dtype not in FLOATS or to not in INTEGERS, "a float becomes an integer")
        require_sole(node, inner, graph, "the value in between is read elsewhere")
        return Match(nodes, build=lambda op: op.like(node, (source,)))
