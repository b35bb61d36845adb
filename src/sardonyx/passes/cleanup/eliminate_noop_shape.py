"""Reshape(x, shape(x)) => x, and every other operator that only rearranges elements and here rearranges nothing.

Cast to the same type, Transpose by the identity, Expand, Slice, Pad, Tile, Squeeze, Unsqueeze, Flatten, Split, Concat
without effect, and Sum, Max, Min, Mean of one input. Does not apply if a size could differ at run time. Helps because
exporters write such nodes for every view and mask, and each costs a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.ir.facts import Dim
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import ints, is_specified, permutation
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass

_TO_THE_END = 2**31 - 1  # what the standard recommends for "up to the end"


def _transpose(node: ir.Node, graph: Facts) -> bool:
    perm = permutation(node, graph)
    return perm is not None and perm == tuple(range(len(perm)))


def _slice(node: ir.Node, graph: Facts) -> bool:
    """Return whether all steps are 1 and the result has the same shape or every range covers its axis."""
    if operand(node, 4) is not None and not _all_are(graph.ints(operand(node, 4)), 1):
        return False
    if graph.same_shape(node.inputs[0], node.outputs[0]):
        return True
    starts, ends = ints(node, "starts", 1, graph), ints(node, "ends", 2, graph)
    if ends is None or not _all_are(starts, 0):
        return False
    axes = ints(node, "axes", 3, graph) if is_specified(node, "axes", 3) else tuple(range(len(ends)))
    shape = graph.shape(node.inputs[0])
    sizes: list[Dim | None] = [None] * len(ends)
    if axes is not None and shape is not None and all(-len(shape) <= axis < len(shape) for axis in axes):
        sizes = [shape[axis] for axis in axes]
    covered = zip(ends, sizes, strict=True)
    return all(end >= _TO_THE_END or (isinstance(size, int) and end >= size) for end, size in covered)


def _squeeze(node: ir.Node, graph: Facts) -> bool:
    """Return whether no axes are given and no dim can be 1; engines read an empty list as all axes or as none."""
    if is_specified(node, "axes", 1) and ints(node, "axes", 1, graph) != ():
        return False
    shape = graph.static_shape(node.inputs[0])
    return shape is not None and 1 not in shape


def _is_cast(node: ir.Node, graph: Facts) -> bool:
    """Return whether a Cast or CastLike keeps the type; before opset 6 the type was given as a string."""
    source = graph.dtype(node.inputs[0])
    if node.op_type == "CastLike":
        return source is not None and source == graph.dtype(operand(node, 1))
    return graph.opset(node) >= 6 and source is not None and int(source) == node.attributes.get_int("to", 0)


def _all_are(numbers: Sequence[int] | None, number: int) -> bool:
    return numbers is not None and all(each == number for each in numbers)


_NOOPS: Mapping[str, Callable[[ir.Node, Facts], bool]] = MappingProxyType(
    {
        **dict.fromkeys(("Cast", "CastLike"), _is_cast),
        **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), lambda node, _: len(node.inputs) == 1),
        "Split": lambda node, _: len(node.outputs) == 1,
        **dict.fromkeys(("Reshape", "Expand"), lambda node, graph: graph.same_shape(node.inputs[0], node.outputs[0])),
        "Transpose": _transpose,
        "Slice": _slice,
        "Pad": lambda node, graph: _all_are(ints(node, "paddings" if graph.opset(node) < 2 else "pads", 1, graph), 0),
        "Tile": lambda node, graph: graph.opset(node) >= 6 and _all_are(graph.ints(operand(node, 1)), 1),
        "Squeeze": _squeeze,
        "Unsqueeze": lambda node, graph: ints(node, "axes", 1, graph) == (),
        "Flatten": lambda node, graph: (
            graph.rank(node.inputs[0]) == 2 and node.attributes.get_int("axis", 1) in (1, -1)
        ),
    }
)


class EliminateNoopShape(NodePass):
    """Operators that rearrange elements, where they rearrange nothing."""

    accuracy = Accuracy.EXACT
    roots = tuple(_NOOPS)
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y) <int64[2] s = {0, 4}>
            { a = Relu(x)  b = Reshape(a, s)  c = Transpose <perm = [0, 1]> (b)  d = Cast <to = 1> (c)  y = Neg(d) }
        """,
        after="{ a = Relu(x)  y = Neg(a) }",
        near_miss="(float[N, 4] x) => (float[2, M] y) <int64[2] s = {2, -1}> { a = Relu(x)  y = Reshape(a, s) }",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        source = operand(node, 0)
        if source is None or not _NOOPS[node.op_type](node, graph):
            return None
        return Match((node,), outputs=(node.outputs[0],), build=lambda _: source)
