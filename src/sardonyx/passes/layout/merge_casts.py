"""Cast(Cast(x, A), B) => Cast(x, B), where every value of x has its place in A.

A pair that ends in the type of x goes altogether. Refuses where the first Cast may round (float to half and back is
not nothing), where a float becomes an integer, since what is out of range may then come out differently, and where
the value in between is read elsewhere. Helps because exporters widen masks and indices step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.shared.matching import maker, operand
from sardonyx.record import Accuracy

_D = ir.DataType

# Bits of magnitude a type holds exactly, and whether it has a sign.
_INTEGERS: Mapping[ir.DataType, tuple[int, bool]] = MappingProxyType(
    {
        _D.BOOL: (1, False), _D.UINT8: (8, False), _D.UINT16: (16, False), _D.UINT32: (32, False),
        _D.UINT64: (64, False), _D.INT8: (7, True), _D.INT16: (15, True), _D.INT32: (31, True), _D.INT64: (63, True),
    }
)  # fmt: skip
_FLOATS: Mapping[ir.DataType, int] = MappingProxyType(
    {_D.FLOAT16: 11, _D.BFLOAT16: 8, _D.FLOAT: 24, _D.DOUBLE: 53}  # all powers of two up to there are in range
)
_WIDER = MappingProxyType(
    {_D.FLOAT16: (_D.FLOAT, _D.DOUBLE), _D.BFLOAT16: (_D.FLOAT, _D.DOUBLE), _D.FLOAT: (_D.DOUBLE,)}
)


class MergeCasts(NodePass):
    """Two conversions in a row, the first without loss."""

    name = "merge-casts"
    accuracy = Accuracy.EXACT
    roots = ("Cast",)
    opset = 6  # before, the type was a string
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (int32[N] x) => (float[N] y, float[N] z) {
                a = Cast <to = 7> (x)  y = Cast <to = 1> (a)
                b = Cast <to = 1> (x)  c = Cast <to = 11> (b)  d = Cast <to = 1> (c)  z = Neg(d)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (int32[N] x) => (float[N] y, float[N] z) {
                y = Cast <to = 1> (x)  b = Cast <to = 1> (x)  z = Neg(b)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[N] y) { a = Cast <to = 10> (x)  y = Cast <to = 1> (a) }
        """,
        refusal="may round",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A Cast of a Cast."""
        inner = maker(node, 0, ("Cast",))
        source = None if inner is None else operand(inner, 0)
        if inner is None or source is None:
            return None
        nodes = (inner, node)
        kind = graph.dtype(source)
        through, to = (_D(each.attributes.get_int("to", 0)) for each in nodes)
        if kind is None:
            return None
        if not _holds(through, kind):
            return Refused("the first conversion may round", nodes)
        if to == kind:
            return Match(nodes, {"source": source})
        if to not in _INTEGERS and to not in _FLOATS:
            return None
        if kind in _FLOATS and to in _INTEGERS:
            return Refused("a float becomes an integer", nodes)
        if graph.sole_user(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        return Match(nodes, {"source": source, "to": to})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One Cast, or none."""
        source: ir.Value = match.found["source"]
        return op.like(match.root, (source,)) if "to" in match.found else source


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether a type has every value of another."""
    if narrow in _FLOATS:
        return wide in _WIDER.get(narrow, ())
    if narrow not in _INTEGERS:
        return False
    bits, signed = _INTEGERS[narrow]
    if wide in _FLOATS:
        return bits <= _FLOATS[wide]
    if wide not in _INTEGERS:
        return False
    room, has_sign = _INTEGERS[wide]
    return bits <= room and (has_sign or not signed)
