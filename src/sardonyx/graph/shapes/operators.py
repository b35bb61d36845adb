"""What operators that compute make of shapes: elementwise, products, convolutions, reductions, control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from sardonyx.graph.shapes import expr
from sardonyx.graph.shapes.expr import Size

if TYPE_CHECKING:
    from sardonyx.graph.shapes.engine import Shape, Shapes

# One shape an output; None where onnx should be asked.
Rule = Callable[[ir.Node, "Shapes"], "Sequence[Shape | None] | None"]

_ALIKE = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BatchNormalization",
    "Bernoulli",
    "BitwiseNot",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumSum",
    "DequantizeLinear",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Mish",
    "Neg",
    "Not",
    "PRelu",
    "QuantizeLinear",
    "RMSNormalization",
    "RandomNormalLike",
    "RandomUniformLike",
    "Reciprocal",
    "Relu",
    "RotaryEmbedding",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
    "EyeLike",
    "GroupNormalization",
    "ReverseSequence",
    "TensorScatter",
    "com.microsoft::BiasGelu",
    "com.microsoft::FastGelu",
    "com.microsoft::Gelu",
    "com.microsoft::QuickGelu",
    "com.microsoft::RotaryEmbedding",
    "SimplifiedLayerNormalization",
]
_BROADCAST = [
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
]
_REDUCE = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


def _alike(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    return [ask.shape(node.inputs[0])] if node.inputs else None


def _dropout(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    return [ask.shape(node.inputs[0])] * 2


def _skip_norm(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    return [shape, None, None, shape]


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of operands that are broadcast together."""
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) != len(shapes):
        return None
    rank = max(map(len, known))
    dims: list[Size] = []
    for axis in range(-rank, 0):
        dim: Size = 1
        for shape in known:
            if len(shape) >= -axis:
                dim = expr.broadcast(dim, shape[axis])
        dims.append(dim)
    return tuple(dims)


def _broadcast(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    if (
        "axis" in node.attributes or "broadcast" in node.attributes
    ):  # before opset 7: the second is made to fit the first
        return _alike(node, ask)
    return [broadcast_shapes([ask.shape(value) for value in node.inputs])]


def _matmul(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    first, second = (ask.shape(value) for value in node.inputs[:2])
    if not first or not second:
        return [None]
    rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
    batch = broadcast_shapes([first[:-2], second[:-2]])
    return [None if batch is None else (*batch, *rows, *columns)]


def _fused_matmul(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    first, second = (ask.shape(value) for value in node.inputs[:2])
    flags = [node.attributes.get_int(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")]
    if first is None or second is None or len(first) < 2 or len(second) < 2 or any(flags[2:]):
        return None
    batch = broadcast_shapes([first[:-2], second[:-2]])
    rows, columns = first[-1 if flags[0] else -2], second[-2 if flags[1] else -1]
    return [None if batch is None else (*batch, rows, columns)]


def _gemm(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    first, second = (ask.shape(value) for value in node.inputs[:2])
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return [None]
    return [(first[node.attributes.get_int("transA", 0)], second[1 - node.attributes.get_int("transB", 0)])]


def _reduce(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    keeps = node.attributes.get_int("keepdims", 1) == 1
    has_axes = "axes" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)
    if shape is None:
        return [() if not has_axes and not keeps else None]
    axes = ask.ints(node, "axes", 1) if has_axes else tuple(range(len(shape)))
    if axes is None:
        return [tuple(ask.unknown() for _ in shape) if keeps else None]
    if not axes and has_axes:
        axes = () if node.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(len(shape)))
    return [_without(shape, axes, keeps)]


def _arg(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return [None]
    return [_without(shape, (node.attributes.get_int("axis", 0),), node.attributes.get_int("keepdims", 1) == 1)]


def _without(shape: Shape, axes: Sequence[int], keeps: bool) -> Shape:
    gone = {axis % len(shape) for axis in axes} if shape else set[int]()
    return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape) if keeps or axis not in gone)


def _conv(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or weight is None or len(shape) < 3:
        return None
    kernel = weight[2:]
    spatial = _windows(node, shape[2:], kernel)
    return None if spatial is None else [(shape[0], weight[0], *spatial)]


def _pool(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(shape) < 3:
        return None
    spatial = _windows(node, shape[2:], tuple(node.attributes["kernel_shape"].as_ints()))
    return None if spatial is None else [(*shape[:2], *spatial)] * 2


def _windows(node: ir.Node, sizes: Shape, kernel: Shape) -> Shape | None:
    """How often a window fits; None where padding or rounding is of the less common kinds."""
    given = node.attributes
    if given.get_string("auto_pad", "NOTSET") != "NOTSET" or given.get_int("ceil_mode", 0):
        return None
    count = len(sizes)
    strides = given.get_ints("strides") or [1] * count
    dilations = given.get_ints("dilations") or [1] * count
    pads = given.get_ints("pads") or [0] * (2 * count)
    if len(kernel) != count:
        return None
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        reach = expr.add(expr.multiply(expr.subtract(width, 1), dilations[axis]), 1)
        room = expr.subtract(expr.add(size, pads[axis] + pads[axis + count]), reach)
        dims.append(expr.add(expr.floor_quotient(room, strides[axis]), 1))
    return tuple(dims)


def _global_pool(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    return [None if shape is None else (*shape[:2], *([1] * len(shape[2:])))]


def _attention(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    """Queries' batch and length, values' width; keys kept for the next step have the past's length added."""
    query, value = ask.shape(node.inputs[0]), ask.shape(node.inputs[2])
    if query is None or value is None or len(query) != len(value) or len(query) not in (3, 4):
        return None
    if len(node.outputs) > 1:
        return None
    heads, of_values = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
    if len(query) == 4:
        return [(*query[:3], value[3])]
    if not heads or not of_values:
        return None
    return [(*query[:2], expr.multiply(expr.floor_quotient(value[2], of_values), heads))]


def _runtime_attention(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    query = ask.shape(node.inputs[0])
    value = ask.shape(node.inputs[2]) if len(node.inputs) > 2 else None
    if query is None or value is None or len(query) != 3 or len(value) != 3 or len(node.outputs) > 1:
        return None
    return [(*query[:2], value[2])]


def _branches(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    """What both branches agree on."""
    one, other = (node.attributes[name].as_graph().outputs for name in ("then_branch", "else_branch"))
    return [_agreed(ask.shape(a), ask.shape(b), ask) for a, b in zip(one, other, strict=True)]


def _agreed(one: Shape | None, other: Shape | None, ask: Shapes) -> Shape | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else ask.unknown() for a, b in zip(one, other, strict=True))


def _nothing(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    """What comes out of a loop may have any shape."""
    return [None] * len(node.outputs)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ALIKE, _alike),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_REDUCE, _reduce),
    "Dropout": _dropout,
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "com.microsoft::FusedGemm": _gemm,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Conv": _conv,
    "com.microsoft::FusedConv": _conv,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "Attention": _attention,
    "com.microsoft::MultiHeadAttention": _runtime_attention,
    "If": _branches,
    "Loop": _nothing,
    "Scan": _nothing,
}
