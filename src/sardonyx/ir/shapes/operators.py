"""Shape rules for operators that compute: elementwise, products, reductions, norms, convolutions, pools, attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sardonyx.ir.ops import BROADCASTS, CASTS, GLOBAL_POOLS, POOLS, RECURRENT, REDUCES, SOFTMAXES, UNARY
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.node_view import NodeView, Shape, Unknown

# The shapes of the first outputs or of all; None if onnx should infer them.
OutputShapes = Sequence["Shape | None"]
Rule = Callable[[NodeView], "OutputShapes | None"]


# Operators whose result has the shape of the first operand.
_SAME_SHAPE = UNARY | SOFTMAXES | CASTS | {
    "Bernoulli", "CumSum", "DequantizeLinear", "EyeLike", "GroupNormalization", "Identity", "InstanceNormalization",
    "LRN", "LpNormalization", "MeanVarianceNormalization", "PRelu", "QuantizeLinear", "RMSNormalization",
    "RandomNormalLike", "RandomUniformLike", "ReverseSequence", "RotaryEmbedding", "ScatterElements", "ScatterND",
    "SimplifiedLayerNormalization", "TensorScatter", "Trilu",
}  # fmt: skip


def _same_shape(node: NodeView) -> OutputShapes | None:
    return (node.shape(),)


def _layer_norm(node: NodeView) -> OutputShapes | None:
    shape = node.known()
    axis = node.number("axis", -1) % max(len(shape), 1)
    statistics = (*shape[:axis], *([1] * (len(shape) - axis)))
    return shape, statistics, statistics


def _batch_norm(node: NodeView) -> OutputShapes | None:
    return node.shape(), *(node.shape(1),) * 4


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


def _broadcast(node: NodeView) -> OutputShapes | None:
    if node.has("axis") or node.has("broadcast"):  # before opset 7 the second operand is broadcast to the first
        return (node.shape(),)
    shapes = [node.ask.shape(value) for value in node.node.inputs]
    # Dimensions "size or copied" (from a Reshape target) that are broadcast with `size`: where `size` is 0, `copied`
    # would have to fit 0, which it does not; in every run that completes the dimension is `size`.
    for dims in itertools.zip_longest(*(reversed(shape) for shape in shapes if shape), fillvalue=1):
        sizes = dict.fromkeys(dims)  # a Sum may have thousands of operands
        for partner in sizes:
            if (atom := expr.copied_size(partner)) is not None and atom.args[0] in sizes:
                node.ask.resolve(node.node, atom, atom.args[0])
    return (broadcast_shapes(shapes),)


def _product_with(right: int) -> Rule:
    """Return the rule for matrix products of the first operand with the one at this index."""

    def rule(node: NodeView) -> OutputShapes | None:
        operands: list[Shape] = []
        for index, name in ((0, "A"), (right, "B")):
            shape = node.known(index)
            if not shape or node.number(f"transBatch{name}", 0):
                raise Unknown
            operands.append((*shape[:-2], *shape[:-3:-1]) if node.number(f"trans{name}", 0) else shape)
        first, second = operands
        batch = broadcast_shapes((first[:-2], second[:-2]))
        return (None if batch is None else (*batch, *first[-2:-1], *(second[-1:] if len(second) > 1 else ())),)

    return rule


def _reduce(node: NodeView) -> OutputShapes | None:
    shape = node.shape()
    keeps_dims = node.number("keepdims", 1) == 1
    has_axes = node.has("axes") or node.operand(1) is not None
    is_noop = node.number("noop_with_empty_axes", 0) == 1
    if shape is None:
        return (() if not has_axes and not keeps_dims and not is_noop else None,)
    axes = node.ints("axes", 1) if has_axes else ()
    if axes is None:
        return (node.unknowns(len(shape)) if keeps_dims else None,)
    return (_without(shape, axes if axes or is_noop else range(len(shape)), keeps_dims),)


def _arg(node: NodeView) -> OutputShapes | None:
    return (_without(node.known(), (node.number("axis", 0),), node.number("keepdims", 1) == 1),)


def _without(shape: Shape, axes: Sequence[int], keeps_dims: bool) -> Shape:
    reduced = {axis % len(shape) for axis in axes} if shape else set[int]()
    return tuple(1 if axis in reduced else dim for axis, dim in enumerate(shape) if keeps_dims or axis not in reduced)


def _einsum(node: NodeView) -> OutputShapes | None:
    """Return the dimension of each letter of the result; equations with an ellipsis are left to onnx."""
    equation = node.text("equation", "").replace(" ", "")
    if "." in equation:
        return None
    terms, arrow, result = equation.partition("->")
    dims: dict[str, Size] = {}
    for index, term in enumerate(terms.split(",")):
        for letter, dim in zip(term, node.known(index), strict=True):
            dims[letter] = expr.broadcast(dims[letter], dim) if letter in dims else dim
    if not arrow:
        result = "".join(sorted(letter for letter in dims if terms.count(letter) == 1))
    return (tuple(dims[letter] for letter in result),)


def _recurrent(node: NodeView) -> OutputShapes | None:
    """Return the shapes of the states of all steps, the last state, and the last cell state of an LSTM."""
    steps, (directions, _, width) = node.known(), node.known(2)
    if node.number("layout", 0):
        last = (steps[0], directions, width)
        return (*steps[:2], directions, width), last, last
    last = (directions, steps[1], width)
    return (steps[0], *last), last, last


def _conv_of(weights: int) -> Rule:
    """Return the rule for convolutions whose weights are the operand at this index."""

    def rule(node: NodeView) -> OutputShapes | None:
        shape, weight = node.known(), node.known(weights)
        if len(shape) < 3 or len(shape) != len(weight):
            return None
        return ((shape[0], weight[0], *_windows(node, shape[2:], weight[2:])),)

    return rule


def _pool(node: NodeView) -> OutputShapes | None:
    shape, kernel = node.known(), node.numbers("kernel_shape")
    if kernel is None or len(shape) != len(kernel) + 2:
        return None
    return ((*shape[:2], *_windows(node, shape[2:], tuple(kernel))),) * 2


def _windows(node: NodeView, sizes: Shape, kernel: Shape) -> Shape:
    """Return the number of window positions on each axis.

    That is (size + pads - reach) // stride + 1, where a window reaches over (width - 1) * dilation + 1 elements.
    """
    count = len(sizes)
    strides = node.numbers("strides") or [1] * count
    dilations = node.numbers("dilations") or [1] * count
    padding, rounds_up = node.text("auto_pad", "NOTSET"), node.number("ceil_mode", 0) == 1
    pads = (node.numbers("pads") if padding in ("NOTSET", "") else None) or [0] * (2 * count)
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[axis]
        reach = expr.add(expr.multiply(expr.subtract(width, 1), dilations[axis]), 1)
        span = expr.subtract(expr.add(size, pads[axis] + pads[axis + count]), reach)
        if padding.startswith("SAME"):
            dims.append(expr.floor_quotient(expr.add(size, stride - 1), stride))
        elif not rounds_up or stride <= 1:
            dims.append(expr.add(expr.floor_quotient(span, stride), 1))
        elif isinstance(span, int) and isinstance(size, int):
            last = -(-span // stride)  # a partial window counts, unless it starts in the trailing padding
            dims.append(last if last * stride >= size + pads[axis] else last + 1)
        else:
            dims.append(node.ask.unknown())
    return tuple(dims)


def _global_pool(node: NodeView) -> OutputShapes | None:
    shape = node.known()
    return ((*shape[:2], *([1] * len(shape[2:]))),)


def _conv_transpose(node: NodeView) -> OutputShapes | None:
    shape, weight = node.known(), node.known(1)
    if len(shape) != len(weight) or node.text("auto_pad", "NOTSET") != "NOTSET":
        return None
    channels, count = expr.multiply(weight[1], node.number("group", 1)), len(shape) - 2
    wanted = node.numbers("output_shape")
    if wanted is not None:
        return ((shape[0], channels, *wanted[-count:]),)
    strides, dilations = node.numbers("strides") or [1] * count, node.numbers("dilations") or [1] * count
    pads, added = node.numbers("pads") or [0] * 2 * count, node.numbers("output_padding") or [0] * count
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(shape[2:], weight[2:], strict=True)):
        reach = expr.multiply(expr.subtract(width, 1), dilations[axis])
        steps = expr.multiply(expr.subtract(size, 1), strides[axis])
        dims.append(expr.total((steps, reach, 1 + added[axis] - pads[axis] - pads[axis + count])))
    return ((shape[0], channels, *dims),)


def _resize(node: NodeView) -> OutputShapes | None:
    """Infer the result from the sizes, or from the factors if they are integers."""
    shape, attribute = node.known(), node.numbers("axes")
    if len(node.node.inputs) < 3 or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    axes = range(len(shape)) if attribute is None else [axis % len(shape) for axis in attribute]
    dims: list[Size] = list(shape)
    sizes = node.contents(3)
    if sizes:
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = node.ask.unknown() if size is None else size
        return (tuple(dims),)
    value = node.operand(2)
    factors = None if value is None else node.ask.small_array(value)
    if factors is None or not factors.size:
        return (tuple(node.ask.unknown() if axis in axes else dim for axis, dim in enumerate(dims)),)
    for axis, factor in zip(axes, factors.reshape(-1), strict=True):
        size = dims[axis]
        if factor == int(factor):
            dims[axis] = expr.multiply(size, int(factor))
        elif isinstance(size, int):
            dims[axis] = int(np.floor(np.float32(size) * np.float32(factor)))
        else:
            dims[axis] = node.ask.unknown()
    return (tuple(dims),)


def _depth_and_space(node: NodeView) -> OutputShapes | None:
    shape, block = node.known(), node.number("blocksize", 0)
    if len(shape) != 4 or block < 1:
        return None
    shrunk, grown = expr.floor_quotient, expr.multiply
    channels, side = (shrunk, grown) if node.node.op_type == "DepthToSpace" else (grown, shrunk)
    return ((shape[0], channels(shape[1], block * block), side(shape[2], block), side(shape[3], block)),)


def _grid_sample(node: NodeView) -> OutputShapes | None:
    return ((*node.known()[:2], *node.known(1)[1:-1]),)


def _attention(node: NodeView) -> OutputShapes | None:
    """Return the shapes of the result, the present keys, the present values and the scores.

    Operands have the shape (batch, heads, length, width), or (batch, length, heads * width) with the number of heads as
    an attribute; the result follows the layout of the queries.
    """
    query, key, value = (
        _with_heads(node.known(index), node.number(count, 0))
        for index, count in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    )
    past, length = node.shape(4), key[2]
    if any(node.operand(index) is not None and node.shape(index) is None for index in (4, 5)):
        length = node.ask.unknown()
    elif past is not None:
        length = expr.add(past[2], length)
    flat = len(node.known()) == 3
    merged = (query[0], query[2], expr.multiply(query[1], value[3]))
    result = merged if flat else (*query[:3], value[3])
    return result, (*key[:2], length, key[3]), (*value[:2], length, value[3]), (*query[:3], length)


def _with_heads(shape: Shape, heads: int) -> Shape:
    """Return the shape as (batch, heads, length, width)."""
    if len(shape) == 4:
        return shape
    if len(shape) != 3 or not heads:
        raise Unknown
    return shape[0], heads, shape[1], expr.floor_quotient(shape[2], heads)


def _multi_head_attention(node: NodeView) -> OutputShapes | None:
    query, value = node.known(), node.known(2)
    if len(query) != 3 or len(value) != 3:
        raise Unknown
    return ((*query[:2], value[2]),)


def _packed_attention(node: NodeView) -> OutputShapes | None:
    """Split the packed width into queries, keys and values: equally, unless `qkv_hidden_sizes` is set."""
    source, weight, widths = node.known(), node.known(1), node.numbers("qkv_hidden_sizes")
    if len(source) != 3 or len(weight) != 2:
        raise Unknown
    return ((*source[:2], expr.floor_quotient(weight[1], 3) if widths is None else widths[2]),)


def _group_query_attention(node: NodeView) -> OutputShapes | None:
    return (node.shape() if node.operand(1) is not None else None,)


def _skip_norm(node: NodeView) -> OutputShapes | None:
    return node.shape(), None, None, node.shape()


def _matmul_packed(node: NodeView) -> OutputShapes | None:
    """Read the number of columns from the attribute `N`, because the weights are packed bits."""
    shape = node.known()
    return ((*shape[:-1], node.number("N", 0)) if shape else None,)


def _lookup_packed(node: NodeView) -> OutputShapes | None:
    """Read the width of a table from its scales, because its numbers are packed bits."""
    rows, scales = node.known(1), node.known(2)
    if len(scales) != 2 or (node.number("gather_axis", 0), node.number("quantize_axis", 1)) != (0, 1):
        raise Unknown
    return ((*rows, expr.multiply(scales[1], node.number("block_size", 128))),)


# Operators of which onnx infers the rank where an operand is unknown.
LEFT_TO_ONNX = RECURRENT | POOLS | {
    "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "Einsum", "GridSample", "QLinearConv", "Resize",
    "SpaceToDepth", "com.microsoft::FusedConv",
}  # fmt: skip
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME_SHAPE, _same_shape),
    **dict.fromkeys(BROADCASTS, _broadcast),
    **dict.fromkeys(REDUCES, _reduce),
    "Dropout": lambda node: (node.shape(),) * 2,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "MatMul": _product_with(1),
    "MatMulInteger": _product_with(1),
    "QLinearMatMul": _product_with(3),
    "Gemm": _product_with(1),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Einsum": _einsum,
    **dict.fromkeys(RECURRENT, _recurrent),
    "Conv": _conv_of(1),
    "ConvInteger": _conv_of(1),
    "QLinearConv": _conv_of(3),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(GLOBAL_POOLS, _global_pool),
    "Resize": _resize,
    "DepthToSpace": _depth_and_space,
    "SpaceToDepth": _depth_and_space,
    "GridSample": _grid_sample,
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention,
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "com.microsoft::FusedMatMul": _product_with(1),
    "com.microsoft::FusedGemm": _product_with(1),
    "com.microsoft::FusedConv": _conv_of(1),
    "com.microsoft::MatMulNBits": _matmul_packed,
    "com.microsoft::GatherBlockQuantized": _lookup_packed,
    **{
        f"com.microsoft::{name}": _same_shape
        for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")
    },
}
