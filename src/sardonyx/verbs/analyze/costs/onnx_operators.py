"""The kinds and costs of ONNX operators: the standard ones, and those of ONNX Runtime that passes write.

Operators of ONNX Runtime are named with their domain ("com.microsoft::BiasGelu"). A slice or a transpose is a copy, as
in the runtime; only operators that reuse their input's memory are views. An operator that is in no table or has unknown
sizes is returned as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from sardonyx.ir import ops
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply, product
from sardonyx.verbs.analyze.costs import program
from sardonyx.verbs.analyze.costs.program import (
    UNKNOWN,
    Description,
    OperatorUse,
    OpKind,
    Rule,
    UnknownSize,
    Value,
    attention_of,
    each,
    floating,
    norm_of,
)


def _number(call: OperatorUse, name: str, default: int = 0) -> int:
    value = call.attributes.get(name, default)
    if not isinstance(value, int):
        raise UnknownSize
    return value


def _numbers(call: OperatorUse, name: str) -> Sequence[int] | None:
    """Return an attribute of several integers, or None if it is not set."""
    value = call.attributes.get(name)
    return None if value is None else tuple(cast("Sequence[int]", value))


# Operators that compute matrix products: linear, convolution, attention, recurrent.


def _matmul(call: OperatorUse) -> Description:
    return program.matrix_product(_last(call.operand(0)), call.result)


def _last(value: Value) -> Size:
    """Return the size of the last axis, which a product sums over."""
    if not value.shape:
        raise UnknownSize
    return value.shape[-1]


def _fused_matmul(call: OperatorUse) -> Description:
    left = call.operand(0)
    if _number(call, "transBatchA"):
        raise UnknownSize
    summed = left.shape[-2] if _number(call, "transA") and len(left.shape) > 1 else _last(left)
    scaled = call.attributes.get("alpha", 1.0) != 1.0
    return program.matrix_product(summed, call.result, more=int(scaled))


def _gemm(call: OperatorUse) -> Description:
    left = call.operand(0, 2)
    more = call.has(2) + _activation(call)
    return program.matrix_product(left.shape[0 if _number(call, "transA") else 1], call.result, more=more)


def _activation(call: OperatorUse) -> int:
    """Return the flops per element of the activation that is part of a fused operator."""
    name = str(call.attributes.get("activation", "")).lower()
    name = {"leakyrelu": "leaky_relu", "clip": "clamp"}.get(name, name)
    if name and name not in program.ELEMENTWISE:
        raise UnknownSize
    return program.ELEMENTWISE[name][1] if name else 0


def _conv_with(weight: int, *more: int, transposed: bool = False) -> Rule:
    """Return the rule of a convolution with this weight; each of `more` (bias, residual) adds one flop per element."""

    def rule(call: OperatorUse) -> Description:
        image, weights, flops = call.operand(0), call.operand(weight), call.has(*more) + _activation(call)
        return program.convolution(image, weights, call.result, transposed=transposed, more=flops)

    return rule


def _attention(call: OperatorUse) -> Description:
    """Describe the standard operator: heads are an axis or part of the width; cached keys precede the new ones."""
    query, key, value = call.operands(3)
    batch, heads, rows, width = _with_heads(query, _number(call, "q_num_heads"))
    _, _, keys, _ = _with_heads(key, _number(call, "kv_num_heads"))
    _, _, _, values = _with_heads(value, _number(call, "kv_num_heads"))
    past = call.optional(4)
    keys = keys if past is None else add(keys, past.shape[2])
    return attention_of(query, (batch, heads, rows), keys, width, values, mask=call.has(3) > 0)


def _with_heads(value: Value, heads: int) -> tuple[Size, Size, Size, Size]:
    """Return batch size, heads, length and width of a head."""
    if len(value.shape) == 4:
        batch, own, length, width = value.shape
        return batch, own, length, width
    if len(value.shape) != 3 or not heads:
        raise UnknownSize
    batch, length, width = value.shape
    return batch, heads, length, floor_quotient(width, heads)


def _packed_attention_of(masks: tuple[int, ...], past_index: int) -> Rule:
    """Return the rule of attention with a packed projection: queries, keys and values have equal widths by default."""

    def rule(call: OperatorUse) -> Description:
        source, weight, heads = call.operand(0, 3), call.operand(1, 2), _number(call, "num_heads")
        batch, rows, _ = source.shape
        widths = _numbers(call, "qkv_hidden_sizes") or (floor_quotient(weight.shape[1], 3),) * 3
        past = call.optional(past_index)
        keys = rows if past is None else add(rows, past.shape[3])
        inner = _by_heads(source, batch, rows, keys, heads, widths[0], widths[2], call.has(*masks))
        projected = product((batch, rows, weight.shape[1]))
        biased = projected if call.has(2) and floating(source, 1) != 0 else 0
        macs = add(inner.macs, multiply(source.elements, weight.shape[1]))
        return replace(inner, macs=macs, other_flops=add(inner.other_flops, biased))

    return rule


def _by_heads(
    source: Value, batch: Size, rows: Size, keys: Size, heads: Size, width: Size, values: Size, masks: int
) -> Description:
    head, value_head = floor_quotient(width, heads), floor_quotient(values, heads)
    return attention_of(source, (batch, heads, rows), keys, head, value_head, mask=masks > 0)


def _multi_head_attention(call: OperatorUse) -> Description:
    """Describe attention after the projections, with separate or packed queries, keys and values."""
    query, heads, masks = call.operand(0), _number(call, "num_heads"), call.has(4, 5)
    key, value, past = call.optional(1), call.optional(2), call.optional(6)
    batch, rows = query.shape[:2]
    if key is None:  # packed: batch, length, heads, 3, width
        width = values = multiply(heads, _last(query))
        keys = rows
    elif value is None:  # packed keys and values: batch, length, heads, 2, width
        keys, width, values = key.shape[1], _last(query), _last(query)
    elif len(key.shape) == 4:  # batch, heads, length, width
        keys, width, values = key.shape[2], _last(query), multiply(heads, _last(value))
    else:
        keys, width, values = key.shape[1], _last(query), _last(value)
    keys = keys if past is None else add(keys, past.shape[2])
    inner = _by_heads(query, batch, rows, keys, heads, width, values, masks)
    biased = multiply(product((batch, rows)), multiply(3, width)) if call.has(3) else 0
    return replace(inner, other_flops=add(inner.other_flops, biased))


def _group_query_attention(call: OperatorUse) -> Description:
    """Describe attention with fewer heads of keys than of queries; the cache counts at its full length."""
    query, heads, shared = call.operand(0, 3), _number(call, "num_heads"), _number(call, "kv_num_heads")
    batch, rows, width = query.shape
    if call.optional(1) is None:  # packed queries, keys and values
        width = multiply(heads, floor_quotient(width, heads + 2 * shared))
    past = call.optional(3)
    keys = rows if past is None else add(rows, past.shape[2])
    return _by_heads(query, batch, rows, keys, heads, width, width, call.has(10))


def _recurrent_of(cell: str) -> Rule:

    def rule(call: OperatorUse) -> Description:
        source, weight, recurrence = call.operand(0, 3), call.operand(1, 3), call.operand(2, 3)
        rows = product(source.shape[:2])
        states = product((rows, recurrence.shape[0], recurrence.shape[2]))
        return program.recurrent(rows, (weight, recurrence), states, cell)

    return rule


def describe(
    operator: str, reads: Sequence[Value | None], writes: Sequence[Value | None], attributes: Mapping[str, object]
) -> Description:
    """Describe an operator at these shapes; omitted inputs in `reads` are None."""
    if operator in _PLAIN:
        return Description(_PLAIN[operator])
    call = OperatorUse(reads, writes, attributes)
    try:
        if operator in _RULES:
            return _RULES[operator](call)
        if operator in _ELEMENTWISE:
            kind, flops = program.ELEMENTWISE[_ELEMENTWISE[operator]]
            return Description(kind, 0, floating(call.result, flops))
        if operator in _REDUCTIONS:
            return Description(OpKind.REDUCTION, 0, floating(call.operand(0), _REDUCTIONS[operator]))
    except UnknownSize:
        pass
    return UNKNOWN


def _biased_gelu(name: str) -> Rule:
    """Return the rule of a GELU of ONNX Runtime, some of which add a bias first."""
    return each(OpKind.ACTIVATION, lambda call: program.ELEMENTWISE[name][1] + call.has(1))


def _quick_gelu(call: OperatorUse) -> int:
    return program.ELEMENTWISE["silu" if call.attributes.get("alpha") == 1.0 else "quick_gelu"][1]


def _batch_norm(call: OperatorUse) -> int:
    return program.BATCH_NORM_IN_TRAINING if _number(call, "training_mode") else program.BATCH_NORM


def _pool(call: OperatorUse) -> Description:
    window = product(tuple(_numbers(call, "kernel_shape") or ()))
    return Description(OpKind.REDUCTION, 0, multiply(window, floating(call.result, 1)))


def _resize(call: OperatorUse) -> Description:
    mode, axes = str(call.attributes.get("mode")), len(call.result.shape) - 2
    linear = {0: "linear", 1: "linear", 2: "bilinear"}.get(axes, "trilinear")
    flops = program.INTERPOLATION[{"linear": linear, "cubic": "bicubic"}.get(mode, "nearest")]
    return Description(OpKind.OTHER if flops else OpKind.COPY, 0, floating(call.result, flops))


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "com.microsoft::MatMulNBits"), _matmul),
    **{f"com.microsoft::{name}": _matmul for name in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")},
    **dict.fromkeys(("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("Gemm", "com.microsoft::FusedGemm", "com.microsoft::QGemm"), _gemm),
    "Conv": _conv_with(1, 2),
    "ConvTranspose": _conv_with(1, 2, transposed=True),
    "ConvInteger": _conv_with(1, 4),
    "QLinearConv": _conv_with(3, 8),
    "DeformConv": _conv_with(1, 3),
    **dict.fromkeys(("com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv"), _conv_with(1, 2, 3)),
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention_of((3, 5), 4),
    "com.microsoft::QAttention": _packed_attention_of((5,), 8),
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    **{name: _recurrent_of(name.lower()) for name in ops.RECURRENT},
    "Einsum": program.einsum,
    **dict.fromkeys(("LayerNormalization", "GroupNormalization"), norm_of(program.LAYER_NORM, 1, 2)),
    **dict.fromkeys(("InstanceNormalization", "com.microsoft::GroupNorm"), norm_of(program.LAYER_NORM, 1, 2)),
    "MeanVarianceNormalization": norm_of(program.LAYER_NORM),
    "LpNormalization": norm_of(program.RMS_NORM),
    "LRN": each(OpKind.NORM, lambda call: _number(call, "size") + 5, read=True),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), norm_of(program.RMS_NORM, 1)),
    "com.microsoft::SkipLayerNormalization": norm_of(program.LAYER_NORM, 1, 2, 3, 4),
    "com.microsoft::SkipSimplifiedLayerNormalization": norm_of(program.RMS_NORM, 1, 2, 3),
    "BatchNormalization": each(OpKind.BATCH_NORM, _batch_norm, read=True),
    **dict.fromkeys(ops.SOFTMAXES, each(OpKind.SOFTMAX, program.SOFTMAX)),
    "Gelu": each(OpKind.ACTIVATION, program.gelu),
    **dict.fromkeys(("com.microsoft::Gelu", "com.microsoft::BiasGelu"), _biased_gelu("gelu")),
    "com.microsoft::FastGelu": _biased_gelu("gelu_tanh"),
    "com.microsoft::QuickGelu": each(OpKind.ACTIVATION, _quick_gelu),
    **dict.fromkeys(ops.VARIADIC - {"Mean"}, each(OpKind.ARITHMETIC, lambda call: max(0, len(call.reads) - 1))),
    "Mean": each(OpKind.ARITHMETIC, lambda call: len(call.reads)),
    **dict.fromkeys(ops.POOLS, _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "GridSample": each(OpKind.OTHER, program.INTERPOLATION["bilinear"]),
    "QuantizeLinear": each(OpKind.ARITHMETIC, 3, read=True),  # on the floating-point input
    "DynamicQuantizeLinear": each(OpKind.ARITHMETIC, 5, read=True),
    "DequantizeLinear": each(OpKind.ARITHMETIC, 2),
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft::RotaryEmbedding"), each(OpKind.ARITHMETIC, 3)),
}

_ELEMENTWISE: Mapping[str, str] = {  # ONNX operator -> name in the table of program.py
    **{
        name: name.lower() for name in ops.ARITHMETIC | ops.TRIGONOMETRIC | ops.EXACT_UNARY | ops.ACTIVATIONS - {"Gelu"}
    },
    **{name: name.lower() for name in ("Erf", "Exp", "Log", "PRelu", "Pow", "Reciprocal", "Sqrt")},
    "Mod": "fmod",
    "Clip": "clamp",
    "LeakyRelu": "leaky_relu",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Shrink": "softshrink",
    **dict.fromkeys(ops.PREDICATES | ops.BITWISE | ops.CASTS | {"BitCast", "BitwiseNot", "Trilu", "Where"}, "where"),
}

_REDUCTIONS: Mapping[str, int] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSum"), 1),
    **dict.fromkeys(("ArgMax", "ArgMin", "CumSum", "CumProd", "GlobalAveragePool", "GlobalMaxPool"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "GlobalLpPool"), 2),
    "ReduceLogSumExp": 3,
}

_SCATTERS = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
_CREATED = ("Constant", "ConstantOfShape", "Range", "EyeLike", "HannWindow", "HammingWindow", "BlackmanWindow")
_PLAIN: Mapping[str, OpKind] = {
    **dict.fromkeys(ops.KEEPS_ORDER | ops.READS_SHAPE, OpKind.VIEW),
    **dict.fromkeys(
        ops.MOVES_DATA - ops.KEEPS_ORDER - ops.LOOKUPS | ops.FILLS - {"Trilu"} | {"Col2Im", "Concat"}, OpKind.COPY
    ),
    **dict.fromkeys(ops.LOOKUPS | {*_SCATTERS, "Compress", "OneHot"}, OpKind.LOOKUP),
    **dict.fromkeys(ops.RANDOM - {"Bernoulli", "Multinomial"} | {*_CREATED}, OpKind.CREATE),
    **dict.fromkeys(("Dropout", "Bernoulli"), OpKind.DROPOUT),  # no-ops at inference
    **{f"com.microsoft::QLinear{name}": OpKind.ARITHMETIC for name in ("Add", "Mul")},  # in integers, so no flops
    **{f"com.microsoft::QLinear{name}": OpKind.ACTIVATION for name in ("Sigmoid", "LeakyRelu")},
    **{
        f"com.microsoft::QLinear{name}": OpKind.REDUCTION for name in ("AveragePool", "GlobalAveragePool", "ReduceMean")
    },
    "com.microsoft::QLinearSoftmax": OpKind.SOFTMAX,
    "com.microsoft::QLinearConcat": OpKind.COPY,
    **dict.fromkeys(("TopK", "NonZero", "Unique", "NonMaxSuppression"), OpKind.OTHER),
    **dict.fromkeys(
        ops.MAKES_SEQUENCE | ops.OPTIONALS | {"ConcatFromSequence", "SequenceAt", "SequenceLength"}, OpKind.OTHER
    ),
}
