"""SequenceAt(SplitToSequence(x), i) => Split(x)[i].

For every part that is read. Refuses if the parts are also read as a sequence, if a part is selected by a computed
index, or if the number of parts is unknown. Helps because a sequence hides its tensors from shape inference and from
every pass that could work on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.scopes import operand, operator
from sardonyx.passes._parts import split_into
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

MAX_PARTS = 1024  # parts of a Split


class _Parts(Struct, frozen=True):
    """The sizes of the parts, and whether each keeps the axis of the split."""

    axis: int
    sizes: tuple[int, ...]
    keeps_axis: bool


class EliminateSplitToSequence(NodePass):
    """Parts taken out of a sequence that was built for them."""

    name = "eliminate-split-to-sequence"
    accuracy = Accuracy.EXACT
    roots = ("SplitToSequence",)
    opset = 11
    example = Example(
        before="""
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 2] z) <int64 two = {2}, int64 i = {0}, int64 j = {-1}> {
                s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i)  z = SequenceAt(s, j)
            }
        """,
        after="""
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 2] z) <int64[3] sizes = {2, 2, 2}> {
                y, u, z = Split <axis = 1> (x, sizes)
            }
        """,
        near_miss="""
            agraph (float[N, 6] x, int64 i) => (float[N, 2] y) <int64 two = {2}> {
                s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, i)
            }
        """,
        refusal="computed index",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        users = [use.node for use in node.outputs[0].uses()]
        if node.outputs[0].is_graph_output() or any(operator(user) != "SequenceAt" for user in users):
            return Refused("its parts are read as a sequence", (node,))
        if not users or any(user.graph is not node.graph for user in users):
            return None
        source, parts = node.inputs[0], _parts(node, graph)
        if parts is None or source is None:
            return Refused("the number of its parts is unknown", (node,))
        indices = [graph.scalar(user.inputs[1]) for user in users]
        if any(index is None for index in indices):
            return Refused("a part is selected by a computed index", (node,))
        places = [int(index) % len(parts.sizes) for index in indices if index is not None]
        outputs = tuple(user.outputs[0] for user in users)
        return Match((*users, node), outputs=outputs, build=partial(_selected, source, parts, places))


def _selected(source: ir.Value, parts: _Parts, places: Sequence[int], op: Builder) -> Replacement:
    """Build one Split, and a Squeeze of each part that loses the axis."""
    values = split_into(source, parts.axis, parts.sizes, op)
    if not parts.keeps_axis:
        axes = np.array([parts.axis], np.int64)
        values = tuple(op.Squeeze(value, op.constant(axes, "axes")) for value in values)
    return [values[place] for place in places]


def _parts(node: ir.Node, graph: Facts) -> _Parts | None:
    shape = graph.shape(node.inputs[0])
    if not shape:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    size, split_value = shape[axis], operand(node, 1)
    if not isinstance(size, int) or size < 1:
        return None
    if split_value is None:
        keeps = node.attributes.get_int("keepdims", 1) == 1
        return _Parts(axis, (1,) * size, keeps) if size <= MAX_PARTS and (keeps or graph.opset(node) >= 13) else None
    part_sizes, rank = graph.ints(split_value), graph.rank(split_value)
    if part_sizes is None or rank is None or any(part_size < 1 for part_size in part_sizes):
        return None
    if rank == 0:
        (part_size,) = part_sizes
        rest = (size % part_size,) if size % part_size else ()
        part_sizes = (part_size,) * (size // part_size) + rest
    return (
        _Parts(axis, part_sizes, keeps_axis=True) if sum(part_sizes) == size and len(part_sizes) <= MAX_PARTS else None
    )
