"""SequenceAt(SplitToSequence(x), i) => Split(x)[i].

For every part that is read. Refuses where the parts are read as a sequence too, where one is picked by a computed
index, or where their number is not known. Helps because a sequence hides its tensors from shape inference and from
every pass that could work on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import operand
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.layout._splitting import split_into
from sardonyx.records.run import Accuracy

MOST = 1024  # parts worth writing down


@dataclass(frozen=True, slots=True)
class _Parts:
    """How long the parts are, and whether each keeps the axis it was cut along."""

    axis: int
    sizes: tuple[int, ...]
    keeps_axis: bool


class EliminateSplitToSequence(NodePass):
    """Parts taken out of a sequence that was made for them."""

    name = "eliminate-split-to-sequence"
    accuracy = Accuracy.EXACT
    roots = ("SplitToSequence",)
    opset = 11
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 2] z) <int64 two = {2}, int64 i = {0}, int64 j = {-1}> {
                s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i)  z = SequenceAt(s, j)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 2] z) <int64[3] sizes = {2, 2, 2}> {
                y, u, z = Split <axis = 1> (x, sizes)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 6] x, int64 i) => (float[N, 2] y) <int64 two = {2}> {
                s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i)
            }
        """,
        refusal="computed index",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A split all of whose parts are picked by number."""
        users = [use.node for use in node.outputs[0].uses()]
        if node.outputs[0].is_graph_output() or any(user.op_type != "SequenceAt" for user in users):
            return Refused("its parts are read as a sequence", (node,))
        if not users or any(user.graph is not node.graph for user in users):
            return None
        parts = _parts(node, graph)
        if parts is None:
            return Refused("the number of its parts is not known", (node,))
        indices = [graph.scalar(user.inputs[1]) for user in users]
        if any(index is None for index in indices):
            return Refused("a part is picked by a computed index", (node,))
        places = [int(index) % len(parts.sizes) for index in indices if index is not None]
        found = {"parts": parts, "places": places}
        return Match((*users, node), found, tuple(user.outputs[0] for user in users))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One Split, and a Squeeze of each part that loses the axis."""
        parts: _Parts = match.found["parts"]
        source = match.root.inputs[0]
        assert source is not None
        values = split_into(source, parts.axis, parts.sizes, op)
        if not parts.keeps_axis:
            axes = np.array([parts.axis], np.int64)
            values = tuple(op.Squeeze(value, op.constant(axes, "axes")) for value in values)
        places: list[int] = match.found["places"]
        return [values[place] for place in places]


def _parts(node: ir.Node, graph: Facts) -> _Parts | None:
    shape = graph.shape(node.inputs[0])
    if shape is None:
        return None
    axis = node.attributes.get_int("axis", 0) % max(len(shape), 1)
    size, given = shape[axis], operand(node, 1)
    if not isinstance(size, int) or size < 1:
        return None
    if given is None:
        keeps = node.attributes.get_int("keepdims", 1) == 1
        return _Parts(axis, (1,) * size, keeps) if size <= MOST and (keeps or graph.opset(node) >= 13) else None
    wanted, rank = graph.ints(given), graph.rank(given)
    if wanted is None or rank is None or any(each < 1 for each in wanted):
        return None
    if rank == 0:
        (each,) = wanted
        rest = (size % each,) if size % each else ()
        wanted = (each,) * (size // each) + rest
    return _Parts(axis, wanted, keeps_axis=True) if sum(wanted) == size and len(wanted) <= MOST else None
