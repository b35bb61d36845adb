"""Shape rules for operators that compute: elementwise, products, reductions, norms, convolutions, pools, attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, CASTS, GLOBAL_POOLS, POOLS, RECURRENT, REDUCES, SOFTMAXES, UNARY
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import Shape, attributes, number, numbers, text
from sardonyx.ir.shapes.expr import Size

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes

# One shape for each output; None if onnx should infer them.
OutputShapes = Sequence["Shape | None"]
Rule = Callable[[ir.Node, "Shapes"], "OutputShapes | None"]


# Operators whose result has the shape of the first operand.
_SAME_SHAPE = UNARY | SOFTMAXES | CASTS | {
    "Bernoulli", "CumSum", "DequantizeLinear", "EyeLike", "GroupNormalization", "Identity", "InstanceNormalization",
    "LRN", "LpNormalization", "MeanVarianceNormalization", "PRelu", "QuantizeLinear", "RMSNormalization",
    "RandomNormalLike", "RandomUniformLike", "ReverseSequence", "RotaryEmbedding", "ScatterElements", "ScatterND",
    "SimplifiedLayerNormalization", "TensorScatter", "Trilu",
}  # fmt: skip


def same_shape(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return the shape of the first input for the first output."""
    return (ask.shape(node.inputs[0]),) if node.inputs else None


def _dropout(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    return (ask.shape(node.inputs[0]),) * 2


def _layer_norm(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.outputs) == 1:
        return (shape,)
    axis = number(node, "axis", -1) % len(shape)
    statistics = (*shape[:axis], *([1] * (len(shape) - axis)))
    return shape, statistics, statistics


def _batch_norm(node: ir.Node, ask: Shapes) -> OutputShapes | None:
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


def _broadcast(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    attribute_map = attributes(node)
    if (
        "axis" in attribute_map or "broadcast" in attribute_map
    ):  # before opset 7 the second operand is broadcast to the first
        return same_shape(node, ask)
    shapes = [ask.shape(value) for value in node.inputs]
    _resolve_copies(node, shapes, ask)
    return (broadcast_shapes(shapes),)


def _resolve_copies(node: ir.Node, shapes: Sequence[Shape | None], ask: Shapes) -> None:
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

    def rule(node: ir.Node, ask: Shapes) -> OutputShapes | None:
        first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[right])
        if not first or not second:
            return (None,)
        rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
        batch = broadcast_shapes((first[:-2], second[:-2]))
        return (None if batch is None else (*batch, *rows, *columns),)

    return rule


def gemm(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return (rows of the first, columns of the second), each possibly transposed."""
    first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return (None,)
    return ((first[number(node, "transA", 0)], second[1 - number(node, "transB", 0)]),)


def _reduce(node: ir.Node, ask: Shapes) -> OutputShapes | None:
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


def _arg(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None,)
    return (_without(shape, (number(node, "axis", 0),), number(node, "keepdims", 1) == 1),)


def _without(shape: Shape, axes: Sequence[int], keeps_dims: bool) -> Shape:
    reduced = {axis % len(shape) for axis in axes} if shape else set[int]()
    return tuple(1 if axis in reduced else dim for axis, dim in enumerate(shape) if keeps_dims or axis not in reduced)


def _einsum(node: ir.Node, ask: Shapes) -> OutputShapes | None:
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


def _recurrent(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return the shapes of the states of all steps, the last state, and the last cell state of an LSTM."""
    steps, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[2])
    if steps is None or weight is None or len(steps) != 3 or len(weight) != 3:
        return None
    if number(node, "layout", 0):
        last = (steps[0], weight[0], weight[2])
        return (*steps[:2], weight[0], weight[2]), last, last
    last = (weight[0], steps[1], weight[2])
    return (steps[0], *last), last, last


def conv_of(weights: int) -> Rule:
    """Return the rule for convolutions whose weights are the input at this index."""

    def rule(node: ir.Node, ask: Shapes) -> OutputShapes | None:
        shape, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[weights])
        if shape is None or weight is None or len(shape) < 3 or len(shape) != len(weight):
            return None
        return ((shape[0], weight[0], *_windows(node, shape[2:], weight[2:], ask)),)

    return rule


def _pool(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, kernel = ask.shape(node.inputs[0]), numbers(node, "kernel_shape")
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return None
    return ((*shape[:2], *_windows(node, shape[2:], tuple(kernel), ask)),) * 2


def _windows(node: ir.Node, sizes: Shape, kernel: Shape, ask: Shapes) -> Shape:
    """Return the number of window positions on each axis.

    That is (size + pads - reach) // stride + 1, where a window reaches over (width - 1) * dilation + 1 elements.
    """
    count = len(sizes)
    strides = numbers(node, "strides") or [1] * count
    dilations = numbers(node, "dilations") or [1] * count
    pads = numbers(node, "pads") or [0] * (2 * count)
    padding, rounds_up = text(node, "auto_pad", "NOTSET"), number(node, "ceil_mode", 0) == 1
    if padding not in ("NOTSET", ""):
        pads = [0] * (2 * count)
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[axis]
        reach = expr.add(expr.multiply(expr.subtract(width, 1), dilations[axis]), 1)
        span = expr.subtract(expr.add(size, pads[axis] + pads[axis + count]), reach)
        if padding.startswith("SAME"):
            dims.append(expr.floor_quotient(expr.add(size, stride - 1), stride))
        elif rounds_up and stride > 1:
            dims.append(_rounded_up(span, expr.add(size, pads[axis]), stride, ask))
        else:
            dims.append(expr.add(expr.floor_quotient(span, stride), 1))
    return tuple(dims)


def _rounded_up(span: Size, start: Size, stride: int, ask: Shapes) -> Size:
    """Return the number of positions if the last, partial window counts, unless it starts in the trailing padding."""
    if not isinstance(span, int) or not isinstance(start, int):
        return ask.unknown()
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= start else count


def _global_pool(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    return (None if shape is None else (*shape[:2], *([1] * len(shape[2:]))),)


def _conv_transpose(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or weight is None or len(shape) != len(weight) or text(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    channels, count = expr.multiply(weight[1], number(node, "group", 1)), len(shape) - 2
    wanted = numbers(node, "output_shape")
    if wanted is not None:
        return ((shape[0], channels, *wanted[-count:]),)
    strides, dilations = numbers(node, "strides") or [1] * count, numbers(node, "dilations") or [1] * count
    pads, added = numbers(node, "pads") or [0] * 2 * count, numbers(node, "output_padding") or [0] * count
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(shape[2:], weight[2:], strict=True)):
        reach = expr.multiply(expr.subtract(width, 1), dilations[axis])
        steps = expr.multiply(expr.subtract(size, 1), strides[axis])
        dims.append(expr.total((steps, reach, 1 + added[axis] - pads[axis] - pads[axis + count])))
    return ((shape[0], channels, *dims),)


def _resize(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Infer the result from the sizes, or from the factors if they are integers."""
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.inputs) < 3 or text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    attribute = numbers(node, "axes")
    axes = range(len(shape)) if attribute is None else [axis % len(shape) for axis in attribute]
    dims: list[Size] = list(shape)
    sizes = ask.contents(operand(node, 3))
    if sizes:
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = ask.unknown() if size is None else size
        return (tuple(dims),)
    value = node.inputs[2]
    factors = None if value is None else ask.small_array(value)
    if factors is None or not factors.size:
        return (tuple(ask.unknown() if axis in axes else dim for axis, dim in enumerate(dims)),)
    for axis, factor in zip(axes, factors.reshape(-1), strict=True):
        dims[axis] = _scaled(dims[axis], factor, ask)
    return (tuple(dims),)


def _scaled(size: Size, factor: np.floating, ask: Shapes) -> Size:
    if factor == int(factor):
        return expr.multiply(size, int(factor))
    return int(np.floor(np.float32(size) * np.float32(factor))) if isinstance(size, int) else ask.unknown()


def _depth_to_space(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, block = ask.shape(node.inputs[0]), number(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or block < 1:
        return None
    channels = expr.floor_quotient(shape[1], block * block)
    return ((shape[0], channels, *(expr.multiply(size, block) for size in shape[2:])),)


def _space_to_depth(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, block = ask.shape(node.inputs[0]), number(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or block < 1:
        return None
    channels = expr.multiply(shape[1], block * block)
    return ((shape[0], channels, *(expr.floor_quotient(size, block) for size in shape[2:])),)


def _grid_sample(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, grid = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    return None if shape is None or grid is None else ((*shape[:2], *grid[1:-1]),)


def _attention(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return the shapes of the result, the present keys, the present values and the scores.

    Operands have the shape (batch, heads, length, width), or (batch, length, heads * width) with the number of heads as
    an attribute; the result follows the layout of the queries.
    """
    shapes = [
        _with_heads(ask.shape(operand(node, index)), number(node, count, 0)) for index, count in enumerate(_HEADS)
    ]
    query, key, value = shapes
    if query is None or key is None or value is None:
        return (None,) * len(node.outputs)
    past, past_values = ask.shape(operand(node, 4)), ask.shape(operand(node, 5))
    if (operand(node, 4) is not None and past is None) or (operand(node, 5) is not None and past_values is None):
        length: Size = ask.unknown()
    else:
        length = key[2] if past is None else expr.add(past[2], key[2])
    flat = len(ask.shape(node.inputs[0]) or ()) == 3
    merged = (query[0], query[2], expr.multiply(query[1], value[3]))
    result = merged if flat else (*query[:3], value[3])
    return result, (*key[:2], length, key[3]), (*value[:2], length, value[3]), (*query[:3], length)


_HEADS = ("q_num_heads", "kv_num_heads", "kv_num_heads")


def _with_heads(shape: Shape | None, heads: int) -> Shape | None:
    """Return the shape as (batch, heads, length, width), or None if the number of heads is unknown."""
    if shape is None or len(shape) == 4:
        return shape
    if len(shape) != 3 or not heads:
        return None
    return shape[0], heads, shape[1], expr.floor_quotient(shape[2], heads)


def _multi_head_attention(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    query, value = ask.shape(node.inputs[0]), ask.shape(operand(node, 2))
    if query is None or value is None or len(query) != 3 or len(value) != 3:
        return (None,) * len(node.outputs)
    return ((*query[:2], value[2]),)


def _packed_attention(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Split the packed width into queries, keys and values: equally, unless `qkv_hidden_sizes` is set."""
    source, weight = ask.shape(node.inputs[0]), ask.shape(operand(node, 1))
    widths = numbers(node, "qkv_hidden_sizes")
    if source is None or weight is None or len(source) != 3 or len(weight) != 2:
        return (None,) * len(node.outputs)
    return ((*source[:2], expr.floor_quotient(weight[1], 3) if widths is None else widths[2]),)


def _group_query_attention(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    return (ask.shape(node.inputs[0]) if operand(node, 1) is not None else None,)


def _skip_norm(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    return shape, None, None, shape


def _fused_matmul(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    transposed, batches = [number(node, name, 0) for name in ("transA", "transB")], ("transBatchA", "transBatchB")
    if first is None or second is None or len(first) < 2 or len(second) < 2:
        return (None,)
    if any(number(node, name, 0) for name in batches):
        return (None,)
    batch = broadcast_shapes((first[:-2], second[:-2]))
    rows, columns = first[-1 if transposed[0] else -2], second[-2 if transposed[1] else -1]
    return (None if batch is None else (*batch, rows, columns),)


def _matmul_packed(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Read the number of columns from the attribute `N`, because the weights are packed bits."""
    shape = ask.shape(node.inputs[0])
    return (None if not shape else (*shape[:-1], number(node, "N", 0)),)


def _lookup_packed(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Read the width of a table from its scales, because its numbers are packed bits."""
    rows, scales = ask.shape(node.inputs[1]), ask.shape(node.inputs[2])
    places = number(node, "gather_axis", 0), number(node, "quantize_axis", 1)
    if rows is None or scales is None or len(scales) != 2 or places != (0, 1):
        return (None,)
    return ((*rows, expr.multiply(scales[1], number(node, "block_size", 128))),)


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
    "Conv": conv_of(1),
    "ConvInteger": conv_of(1),
    "QLinearConv": conv_of(3),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(GLOBAL_POOLS, _global_pool),
    "Resize": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "GridSample": _grid_sample,
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention,
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "com.microsoft::FusedGemm": gemm,
    "com.microsoft::FusedConv": conv_of(1),
    "com.microsoft::MatMulNBits": _matmul_packed,
    "com.microsoft::GatherBlockQuantized": _lookup_packed,
    **{
        f"com.microsoft::{name}": same_shape
        for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")
    },
}
