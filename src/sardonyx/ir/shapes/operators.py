"""Shape rules for operators that compute: elementwise, matrix products, reductions, normalizations, recurrent cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, CASTS, RECURRENT, REDUCES, SOFTMAXES, UNARY
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number, text
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.queries import Shape, ShapeQueries

# One shape for each output; None if onnx should infer them.
OutputShapes = Sequence["Shape | None"]
Rule = Callable[[ir.Node, ShapeQueries], "OutputShapes | None"]


# Operators whose result has the shape of the first operand.
_SAME_SHAPE = UNARY | SOFTMAXES | CASTS | {
    "Bernoulli", "CumSum", "DequantizeLinear", "EyeLike", "GroupNormalization", "Identity", "InstanceNormalization",
    "LRN", "LpNormalization", "MeanVarianceNormalization", "PRelu", "QuantizeLinear", "RMSNormalization",
    "RandomNormalLike", "RandomUniformLike", "ReverseSequence", "RotaryEmbedding", "ScatterElements", "ScatterND",
    "SimplifiedLayerNormalization", "TensorScatter", "Trilu",
}  # fmt: skip


def same_shape(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return the shape of the first input for the first output."""
    return (ask.shape(node.inputs[0]),) if node.inputs else None


def _dropout(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    return (ask.shape(node.inputs[0]),) * 2


def _layer_norm(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.outputs) == 1:
        return (shape,)
    axis = number(node, "axis", -1) % len(shape)
    statistics = (*shape[:axis], *([1] * (len(shape) - axis)))
    return shape, statistics, statistics


def _batch_norm(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, channels = ask.shape(node.inputs[0]), ask.shape(operand(node, 1))
    return shape, channels, channels, channels, channels


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the shape that the shapes broadcast to, or None if one is unknown."""
    widest: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        if len(shape) > len(widest):
            widest = shape
    if all(shape == widest or not shape for shape in shapes):
        return widest
    dims: list[Size] = []
    for axis in range(-len(widest), 0):
        dim: Size = 1
        for shape in shapes:
            if shape is not None and len(shape) >= -axis:
                dim = expr.broadcast(dim, shape[axis])
        dims.append(dim)
    return tuple(dims)


def _broadcast(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    attribute_map = attributes(node)
    if (
        "axis" in attribute_map or "broadcast" in attribute_map
    ):  # before opset 7 the second operand is broadcast to the first
        return same_shape(node, ask)
    shapes = [ask.shape(value) for value in node.inputs]
    _resolve_copies(node, shapes, ask)
    return (broadcast_shapes(shapes),)


def _resolve_copies(node: ir.Node, shapes: Sequence[Shape | None], ask: ShapeQueries) -> None:
    """Resolve dimensions "size or copied" (from a Reshape target) that are broadcast with `size`.

    Where `size` is 0, `copied` would have to fit 0, which it does not: in every run that completes the dimension is
    `size`.
    """
    for dims in itertools.zip_longest(*(reversed(shape) for shape in shapes if shape), fillvalue=1):
        sizes = dict.fromkeys(dims)  # a Sum may have thousands of operands
        for partner in sizes:
            if (atom := expr.copied_size(partner)) is not None and atom.args[0] in sizes:
                ask.resolve(node, atom, atom.args[0])


def matmul_with(right: int) -> Rule:
    """Return the rule for matrix products of the first operand with the one at this index."""

    def rule(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
        first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[right])
        if not first or not second:
            return (None,)
        rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
        batch = broadcast_shapes((first[:-2], second[:-2]))
        return (None if batch is None else (*batch, *rows, *columns),)

    return rule


def gemm(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return (rows of the first, columns of the second), each possibly transposed."""
    first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return (None,)
    return ((first[number(node, "transA", 0)], second[1 - number(node, "transB", 0)]),)


def _reduce(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    keeps_dims = number(node, "keepdims", 1) == 1
    has_axes = "axes" in attributes(node) or operand(node, 1) is not None
    is_noop = number(node, "noop_with_empty_axes", 0) == 1
    if shape is None:
        return (() if not has_axes and not keeps_dims and not is_noop else None,)
    axes = ask.ints(node, "axes", 1) if has_axes else ()
    if axes is None:
        return (tuple(ask.unknown() for _ in shape) if keeps_dims else None,)
    return (_without(shape, axes if axes or is_noop else range(len(shape)), keeps_dims),)


def _arg(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None,)
    return (_without(shape, (number(node, "axis", 0),), number(node, "keepdims", 1) == 1),)


def _without(shape: Shape, axes: Sequence[int], keeps_dims: bool) -> Shape:
    reduced = {axis % len(shape) for axis in axes} if shape else set[int]()
    return tuple(1 if axis in reduced else dim for axis, dim in enumerate(shape) if keeps_dims or axis not in reduced)


def _einsum(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return the dimension of each letter of the result; equations with an ellipsis are left to onnx."""
    equation = text(node, "equation", "").replace(" ", "")
    if "." in equation:
        return None
    terms, arrow, result = equation.partition("->")
    dims: dict[str, Size] = {}
    for term, value in zip(terms.split(","), node.inputs, strict=True):
        shape = ask.shape(value)
        if shape is None:
            return None
        for letter, dim in zip(term, shape, strict=True):
            dims[letter] = expr.broadcast(dims[letter], dim) if letter in dims else dim
    if not arrow:
        result = "".join(sorted(letter for letter in dims if terms.count(letter) == 1))
    return (tuple(dims[letter] for letter in result),)


def _recurrent(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return the shapes of the states of all steps, the last state, and the last cell state of an LSTM."""
    steps, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[2])
    if steps is None or weight is None or len(steps) != 3 or len(weight) != 3:
        return None
    if number(node, "layout", 0):
        last = (steps[0], weight[0], weight[2])
        return (*steps[:2], weight[0], weight[2]), last, last
    last = (weight[0], steps[1], weight[2])
    return (steps[0], *last), last, last


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME_SHAPE, same_shape),
    **dict.fromkeys(BROADCASTS, _broadcast),
    **dict.fromkeys(REDUCES, _reduce),
    "Dropout": _dropout,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "MatMul": matmul_with(1),
    "MatMulInteger": matmul_with(1),
    "QLinearMatMul": matmul_with(3),
    "Gemm": gemm,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Einsum": _einsum,
    **dict.fromkeys(RECURRENT, _recurrent),
}
