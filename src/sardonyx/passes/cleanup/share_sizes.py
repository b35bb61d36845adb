"""size(x), size(y), of the same symbolic size => size(x) once.

For any two small integer tensors in one graph that contain the same sizes, however computed. Refuses nothing: tensors
that may differ are not shared. Helps because exporters read batch and length from the values of every layer, so that
equal chains of arithmetic start at different values and common-subexpression elimination finds nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import onnx_ir as ir

from sardonyx.ir.shapes import INTEGERS
from sardonyx.passes.base import Accuracy, Example, Facts, Match, ModelPass, Proposal


class ShareSizes(ModelPass):
    """Equal sizes within one graph."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            (float[N, 2] x) => (float[M, 4] y, int64 z) <int64 first = {0}, int64[1] four = {4}, int64[1] at = {0}> {
                s = Shape(x)  n = Gather(s, first)  z = Neg(n)
                r = Relu(x)  t = Shape(r)  m = Gather(t, first)  u = Unsqueeze(m, at)  c = Concat <axis = 0> (u, four)
                f = ConstantOfShape(c)  y = Sin(f)
            }
        """,
        after="""{
            s = Shape(x)  n = Gather(s, first)  z = Neg(n)
            r = Relu(x)  u = Unsqueeze(n, at)  c = Concat <axis = 0> (u, four)
            f = ConstantOfShape(c)  y = Sin(f)
        }""",
        near_miss="""
            (float[N, 2] x, float[M, 2] w) => (int64 y, int64 z) <int64 first = {0}>
            { s = Shape(x)  n = Gather(s, first)  z = Neg(n)  t = Shape(w)  m = Gather(t, first)  y = Neg(m) }
        """,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal]:
        """Propose the first value with given sizes for all later ones; graph outputs keep their names."""
        for scope in graph.live_scopes():
            first: dict[Hashable, ir.Value] = {}
            for node in scope.graph:
                if node.domain or len(node.outputs) != 1:
                    continue
                value = node.outputs[0]
                dtype = graph.dtype(value)
                contents = graph.contents(value) if dtype in INTEGERS else None
                if contents is None or None in contents or all(isinstance(item, int) for item in contents):
                    continue  # static sizes are folded
                survivor = first.setdefault((dtype, graph.shape(value), contents), value)
                if survivor is not value and not value.is_graph_output():
                    match = Match((node,), outputs=(value,), survivor=survivor.producer())
                    yield Proposal(match, lambda _, survivor=survivor: survivor)
