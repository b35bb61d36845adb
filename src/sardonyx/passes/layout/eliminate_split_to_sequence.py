"""SequenceAt(SplitToSequence(x), i) => Split(x)[i].

For every part that is read. Refuses if the parts are also read as a sequence, if a part is selected by a computed
index, or if the number of parts is unknown. Helps because a sequence hides its tensors from shape inference and from
every pass that could work on them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import operand, operator
from sardonyx.passes._matching import optional, require, required, static
from sardonyx.passes._parts import split_into
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Replacement

MAX_PARTS = 1024  # parts of a Split


class EliminateSplitToSequence(NodePass):
    """Parts taken out of a sequence that was built for them."""

    accuracy = Accuracy.EXACT
    roots = ("SplitToSequence",)
    opset = 11
    example = Example(
        before="""
            (float[N, 6] x) => (float[N, 2] y, float[N, 2] z) <int64 two = {2}, int64 i = {0}, int64 j = {-1}>
            { s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i)  z = SequenceAt(s, j) }
        """,
        after="<int64[3] sizes = {2, 2, 2}> { y, u, z = Split <axis = 1> (x, sizes) }",
        near_miss="""
            (float[N, 6] x, int64 i) => (float[N, 2] y)
            <int64 two = {2}> { s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i) }
        """,
        refusal="computed index",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        source, users = required(node.inputs[0]), [use.node for use in node.outputs[0].uses()]
        is_sequence = node.outputs[0].is_graph_output() or any(operator(user) != "SequenceAt" for user in users)
        require(not is_sequence, "its parts are read as a sequence")
        require(len(users) > 0 and all(user.graph is node.graph for user in users))
        axis, sizes, keeps_axis = required(_parts(node, graph), "the number of its parts is unknown")
        refusal = "a part is selected by a computed index"
        places = [int(required(graph.scalar(user.inputs[1]), refusal)) % len(sizes) for user in users]

        def build(op: Builder) -> Replacement:
            values = split_into(source, axis, sizes, op)
            if not keeps_axis:
                axes = np.array([axis], np.int64)
                values = tuple(op.Squeeze(value, op.constant(axes, "axes")) for value in values)
            return [values[place] for place in places]

        return Match((*users, node), outputs=tuple(user.outputs[0] for user in users), build=build)


@optional
def _parts(node: ir.Node, graph: Facts) -> tuple[int, tuple[int, ...], bool]:
    """Return the axis, the sizes of the parts, and whether each keeps the axis."""
    shape = required(graph.shape(node.inputs[0]) or None)
    axis = node.attributes.get_int("axis", 0) % len(shape)
    size, split_value = static(shape[axis]), operand(node, 1)
    if split_value is None:
        keeps_axis = node.attributes.get_int("keepdims", 1) == 1
        require(0 < size <= MAX_PARTS and (keeps_axis or graph.opset(node) >= 13))
        return axis, (1,) * size, keeps_axis
    sizes = required(graph.ints(split_value))
    require(size > 0 and all(part > 0 for part in sizes))
    if graph.rank(split_value) == 0:
        (part,) = sizes
        sizes = (part,) * (size // part) + ((size % part,) if size % part else ())
    require(sum(sizes) == size and len(sizes) <= MAX_PARTS)
    return axis, sizes, True
