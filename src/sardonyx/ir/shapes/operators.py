"""What operators that compute make of shapes: elementwise, products, reductions, normalisations, recurrent cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, CASTS, RECURRENT, REDUCES, SOFTMAXES, UNARY
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number, operand, text
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.queries import Ask, Shape

# One shape an output; None where onnx should be asked.
Shapely = Sequence["Shape | None"]
Rule = Callable[[ir.Node, Ask], "Shapely | None"]


# The result has the shape of the first operand: elementwise functions of it, and these.
_ALIKE = UNARY | SOFTMAXES | CASTS | {
    "Bernoulli", "CumSum", "DequantizeLinear", "EyeLike", "GroupNormalization", "Identity", "InstanceNormalization",
    "LRN", "LpNormalization", "MeanVarianceNormalization", "PRelu", "QuantizeLinear", "RMSNormalization",
    "RandomNormalLike", "RandomUniformLike", "ReverseSequence", "RotaryEmbedding", "ScatterElements", "ScatterND",
    "SimplifiedLayerNormalization", "TensorScatter", "Trilu",
}  # fmt: skip


def alike(node: ir.Node, ask: Ask) -> Shapely | None:
    """The first output is as the first input."""
    return (ask.shape(node.inputs[0]),) if node.inputs else None


def _dropout(node: ir.Node, ask: Ask) -> Shapely | None:
    return (ask.shape(node.inputs[0]),) * 2


def _layer_norm(node: ir.Node, ask: Ask) -> Shapely | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.outputs) == 1:
        return (shape,)
    axis = number(node, "axis", -1) % len(shape)
    statistics = (*shape[:axis], *([1] * (len(shape) - axis)))
    return shape, statistics, statistics


def _batch_norm(node: ir.Node, ask: Ask) -> Shapely | None:
    shape, channels = ask.shape(node.inputs[0]), ask.shape(operand(node, 1))
    return shape, channels, channels, channels, channels


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of operands that are broadcast together."""
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


def _broadcast(node: ir.Node, ask: Ask) -> Shapely | None:
    given = attributes(node)
    if "axis" in given or "broadcast" in given:  # before opset 7: the second is made to fit the first
        return alike(node, ask)
    shapes = [ask.shape(value) for value in node.inputs]
    _settle_copies(node, shapes, ask)
    return (broadcast_shapes(shapes),)


def _settle_copies(node: ir.Node, shapes: Sequence[Shape | None], ask: Ask) -> None:
    """A dim that a Reshape copies where a size is zero, beside that size: zero fits nothing else, so it is the size."""
    for one, other in itertools.permutations([shape for shape in shapes if shape], 2):
        for dim, partner in zip(reversed(one), reversed(other), strict=False):
            if dim is not partner and (atom := expr.copied_instead_of(dim, partner)) is not None:
                ask.settle(node, atom, dim)


def matmul_of(left: int, right: int) -> Rule:
    """Matrix products of the operands at these places."""

    def rule(node: ir.Node, ask: Ask) -> Shapely | None:
        first, second = ask.shape(node.inputs[left]), ask.shape(node.inputs[right])
        if not first or not second:
            return (None,)
        rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
        batch = broadcast_shapes((first[:-2], second[:-2]))
        return (None if batch is None else (*batch, *rows, *columns),)

    return rule


def gemm(node: ir.Node, ask: Ask) -> Shapely | None:
    """Rows of the first, columns of the second, each perhaps transposed."""
    first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return (None,)
    return ((first[number(node, "transA", 0)], second[1 - number(node, "transB", 0)]),)


def _reduce(node: ir.Node, ask: Ask) -> Shapely | None:
    shape = ask.shape(node.inputs[0])
    keeps = number(node, "keepdims", 1) == 1
    has_axes = "axes" in attributes(node) or operand(node, 1) is not None
    is_noop = number(node, "noop_with_empty_axes", 0) == 1
    if shape is None:
        return (() if not has_axes and not keeps and not is_noop else None,)
    axes = ask.ints(node, "axes", 1) if has_axes else ()
    if axes is None:
        return (tuple(ask.unknown() for _ in shape) if keeps else None,)
    return (_without(shape, axes if axes or is_noop else range(len(shape)), keeps),)


def _arg(node: ir.Node, ask: Ask) -> Shapely | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None,)
    return (_without(shape, (number(node, "axis", 0),), number(node, "keepdims", 1) == 1),)


def _without(shape: Shape, axes: Sequence[int], keeps: bool) -> Shape:
    gone = {axis % len(shape) for axis in axes} if shape else set[int]()
    return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape) if keeps or axis not in gone)


def _einsum(node: ir.Node, ask: Ask) -> Shapely | None:
    """Every letter is a dim; with "..." onnx is asked."""
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


def _recurrent(node: ir.Node, ask: Ask) -> Shapely | None:
    """All steps' states, then the last one, then what an LSTM keeps beside them."""
    steps, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[2])
    if steps is None or weight is None or len(steps) != 3 or len(weight) != 3:
        return None
    if number(node, "layout", 0):
        last = (steps[0], weight[0], weight[2])
        return (*steps[:2], weight[0], weight[2]), last, last
    last = (weight[0], steps[1], weight[2])
    return (steps[0], *last), last, last


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ALIKE, alike),
    **dict.fromkeys(BROADCASTS, _broadcast),
    **dict.fromkeys(REDUCES, _reduce),
    "Dropout": _dropout,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "MatMul": matmul_of(0, 1),
    "MatMulInteger": matmul_of(0, 1),
    "QLinearMatMul": matmul_of(0, 3),
    "Gemm": gemm,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Einsum": _einsum,
    **dict.fromkeys(RECURRENT, _recurrent),
}
