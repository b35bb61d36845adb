"""Shape(x: [2, 3]) => [2, 3].

Also whatever is computed from sizes and comes to numbers although some of the sizes are symbolic: a dim that is picked,
a quotient in which they cancel, a comparison that can only turn out one way. Leaves other symbolic dims alone. Helps
because exporters compute sizes at run time that were known all along, and views wait for them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Match, Refused, Replacement
from sardonyx.graph.scopes import is_constant
from sardonyx.graph.shapes import COMPUTES_SIZES, INTEGERS
from sardonyx.passes.base import Example, NodePass
from sardonyx.record import Accuracy


class FoldShapes(NodePass):
    """Sizes that are known before the model runs."""

    name = "fold-shapes"
    accuracy = Accuracy.EXACT
    roots = COMPUTES_SIZES
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}> {
                s = Shape(x)  d = Gather(s, last)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}, int64 d = {4}> {
                f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 first = {0}> {
                s = Shape(x)  d = Gather(s, first)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        refusal="dynamic",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Integers, every one of which is certain."""
        value = node.outputs[0]
        dtype, contents = graph.dtype(value), graph.contents(value)
        if (
            contents is None
            or dtype is None
            or dtype not in INTEGERS
            or len(node.outputs) > 1
            or graph.scope(node).in_function
        ):
            return None
        makers = tuple(maker for maker in node.predecessors() if maker.graph is node.graph and not is_constant(maker))
        if not all(isinstance(item, int) for item in contents):
            asks = [maker for maker in makers if maker.op_type == "Shape"]
            return Refused("the dims it picks are dynamic", (*asks, node)) if asks else None
        shape = graph.static_shape(value)
        assert shape is not None
        return Match((*makers, node), {"value": np.array(contents, dtype.numpy()).reshape(shape)})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The numbers."""
        return op.constant(match.found["value"], "size")
