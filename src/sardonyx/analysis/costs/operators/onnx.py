"""What ONNX operators are and cost: the standard's, and those of ONNX Runtime that our passes write.

Operators go by name, the runtime's with their domain ("com.microsoft::BiasGelu"). Here a slice or a transposition is a
copy, since the runtime makes one; only what it hands on in place is a view. What is in no table is not known, and so is
one whose sizes do not follow from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sardonyx.analysis.costs.operators import description
from sardonyx.analysis.costs.operators.description import (
    UNKNOWN,
    Description,
    attention_of,
    convolution,
    einsum,
    floating,
    matrix_product_over,
    recurrent,
)
from sardonyx.analysis.costs.program import OpKind, Value
from sardonyx.ir.ops import (
    ACTIVATIONS,
    ARITHMETIC,
    BITWISE,
    CASTS,
    EXACT_UNARY,
    FILLS,
    KEEPS_ORDER,
    LOOKUPS,
    MAKES_SEQUENCE,
    MOVES_DATA,
    OPTIONALS,
    POOLS,
    PREDICATES,
    RANDOM,
    READS_SHAPE,
    RECURRENT,
    SOFTMAXES,
    TRIGONOMETRIC,
    VARIADIC,
)
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply, product

# One use of an ONNX operator: its inputs by place, its outputs, its attributes as plain numbers and texts.


class Untold(Exception):
    """A size that the costs follow from is not known, or the node is not what its operator asks for."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a rule may look at."""

    reads: Sequence[Value | None]  # None: left out, or not even the number of its axes is known
    writes: Sequence[Value | None]
    attributes: Mapping[str, object]

    def read(self, place: int) -> Value | None:
        """An input that may be left out."""
        return self.reads[place] if place < len(self.reads) else None

    def has(self, *places: int) -> int:
        """How many of these inputs are given."""
        return sum(self.read(place) is not None for place in places)

    def given(self, place: int, rank: int | None = None) -> Value:
        """An input that costs follow from, perhaps of so many axes."""
        return _known(self.read(place), rank)

    @property
    def result(self) -> Value:
        """The first output."""
        return _known(self.writes[0] if self.writes else None, None)

    def number(self, name: str, default: int = 0) -> int:
        """An attribute that is an integer."""
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise Untold(name)
        return found

    def numbers(self, name: str) -> Sequence[int] | None:
        """An attribute of several integers."""
        found = self.attributes.get(name)
        return None if found is None else tuple(cast("Sequence[int]", found))

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a text."""
        return str(self.attributes.get(name, default))


def _known(value: Value | None, rank: int | None) -> Value:
    if value is None or (rank is not None and len(value.shape) != rank):
        raise Untold
    return value


# ONNX operators whose work is matrix products: linear, convolution, attention, recurrent; also the runtime's own.

Rule = Callable[[Call], Description]


def _matmul(call: Call) -> Description:
    return matrix_product_over(_last(call.given(0)), call.result)


def _last(value: Value) -> Size:
    """How long the rows are that a product sums over."""
    if not value.shape:
        raise Untold
    return value.shape[-1]


def _fused_matmul(call: Call) -> Description:
    left = call.given(0)
    if call.number("transBatchA"):
        raise Untold
    summed = left.shape[-2] if call.number("transA") and len(left.shape) > 1 else _last(left)
    scaled = call.attributes.get("alpha", 1.0) != 1.0
    return matrix_product_over(summed, call.result, more=int(scaled))


def _gemm(call: Call) -> Description:
    left = call.given(0, 2)
    more = call.has(2) + activation(call)
    return matrix_product_over(left.shape[0 if call.number("transA") else 1], call.result, more=more)


def activation(call: Call) -> int:
    """Flops per element of the activation that a fused operator carries out at once."""
    name = call.text("activation").lower()
    name = {"leakyrelu": "leaky_relu", "clip": "clamp"}.get(name, name)
    if name and name not in description.ELEMENTWISE:
        raise Untold
    return description.ELEMENTWISE[name][1] if name else 0


def _conv_of(image: int, weight: int, bias: int, *, transposed: bool = False) -> Rule:
    """A convolution with its operands at these places."""

    def rule(call: Call) -> Description:
        more = call.has(bias) + activation(call)
        return convolution(call.given(image), call.given(weight), call.result, transposed=transposed, more=more)

    return rule


def _fused_conv(call: Call) -> Description:
    """A bias, something added to the result, an activation."""
    more = call.has(2, 3) + activation(call)
    return convolution(call.given(0), call.given(1), call.result, transposed=False, more=more)


def _attention(call: Call) -> Description:
    """The standard's: heads as an axis or within the width; keys of earlier steps come before the new ones."""
    query, key, value = (call.given(place) for place in range(3))
    batch, heads, rows, width = _with_heads(query, call.number("q_num_heads"))
    _, _, keys, _ = _with_heads(key, call.number("kv_num_heads"))
    _, _, _, values = _with_heads(value, call.number("kv_num_heads"))
    past = call.read(4)
    keys = keys if past is None else add(keys, past.shape[2])
    return attention_of(query, (batch, heads, rows), keys, width, values, mask=call.has(3) > 0)


def _with_heads(value: Value, heads: int) -> tuple[Size, Size, Size, Size]:
    """Batch, heads, length, width of a head."""
    if len(value.shape) == 4:
        batch, own, length, width = value.shape
        return batch, own, length, width
    if len(value.shape) != 3 or not heads:
        raise Untold
    batch, length, width = value.shape
    return batch, heads, length, floor_quotient(width, heads)


def _packed_attention_of(masks: tuple[int, ...], past_place: int) -> Rule:
    """The runtime's: one product makes queries, keys and values, of a third of its width each unless it is said."""

    def rule(call: Call) -> Description:
        source, weight, heads = call.given(0, 3), call.given(1, 2), call.number("num_heads")
        batch, rows, _ = source.shape
        widths = call.numbers("qkv_hidden_sizes") or (floor_quotient(weight.shape[1], 3),) * 3
        past = call.read(past_place)
        keys = rows if past is None else add(rows, past.shape[3])
        inner = _by_heads(source, batch, rows, keys, heads, widths[0], widths[2], call.has(*masks))
        projected = product((batch, rows, weight.shape[1]))
        biased = projected if call.has(2) and floating(source, 1) != 0 else 0
        return _with_projection(inner, multiply(source.elements, weight.shape[1]), biased)

    return rule


def _with_projection(inner: Description, macs: Size, flops: Size) -> Description:
    return Description(inner.kind, add(inner.macs, macs), add(inner.other_flops, flops))


def _by_heads(
    source: Value, batch: Size, rows: Size, keys: Size, heads: Size, width: Size, values: Size, masks: int
) -> Description:
    """An attention by the width of all heads together."""
    each, mixed = floor_quotient(width, heads), floor_quotient(values, heads)
    return attention_of(source, (batch, heads, rows), keys, each, mixed, mask=masks > 0)


def _multi_head_attention(call: Call) -> Description:
    """The runtime's, after the projections: separate, or queries, keys and values side by side."""
    query, heads, masks = call.given(0), call.number("num_heads"), call.has(4, 5)
    key, value, past = call.read(1), call.read(2), call.read(6)
    batch, rows = query.shape[:2]
    if key is None:  # batch, length, heads, three, width
        width = values = multiply(heads, _last(query))
        keys = rows
    elif value is None:  # keys and values side by side: batch, length, heads, two, width
        keys, width, values = key.shape[1], _last(query), _last(query)
    elif len(key.shape) == 4:  # batch, heads, length, width
        keys, width, values = key.shape[2], _last(query), multiply(heads, _last(value))
    else:
        keys, width, values = key.shape[1], _last(query), _last(value)
    keys = keys if past is None else add(keys, past.shape[2])
    inner = _by_heads(query, batch, rows, keys, heads, width, values, masks)
    biased = multiply(product((batch, rows)), multiply(3, width)) if call.has(3) else 0
    return _with_projection(inner, 0, biased)


def _group_query_attention(call: Call) -> Description:
    """The runtime's, with fewer heads of keys than of queries; what is kept from before counts as full."""
    query, heads, fewer = call.given(0, 3), call.number("num_heads"), call.number("kv_num_heads")
    batch, rows, width = query.shape
    if call.read(1) is None:  # queries, keys and values side by side
        width = multiply(heads, floor_quotient(width, heads + 2 * fewer))
    past = call.read(3)
    keys = rows if past is None else add(rows, past.shape[2])
    return _by_heads(query, batch, rows, keys, heads, width, width, call.has(10))


def _recurrent_of(cell: str) -> Rule:
    """Steps of a cell, in one direction or two."""

    def rule(call: Call) -> Description:
        source, inward, onward = call.given(0, 3), call.given(1, 3), call.given(2, 3)
        rows = product(source.shape[:2])
        states = product((rows, onward.shape[0], onward.shape[2]))
        return recurrent(rows, (inward, onward), states, cell)

    return rule


def _einsum(call: Call) -> Description:
    operands = [call.given(place) for place in range(len(call.reads))]
    return einsum(call.text("equation"), operands, call.result)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "com.microsoft::MatMulNBits"), _matmul),
    **{f"com.microsoft::{name}": _matmul for name in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")},
    **dict.fromkeys(("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("Gemm", "com.microsoft::FusedGemm", "com.microsoft::QGemm"), _gemm),
    "Conv": _conv_of(0, 1, 2),
    "ConvTranspose": _conv_of(0, 1, 2, transposed=True),
    "ConvInteger": _conv_of(0, 1, 4),
    "QLinearConv": _conv_of(0, 3, 8),
    "DeformConv": _conv_of(0, 1, 3),
    **dict.fromkeys(("com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv"), _fused_conv),
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention_of((3, 5), 4),
    "com.microsoft::QAttention": _packed_attention_of((5,), 8),
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    **{name: _recurrent_of(name.lower()) for name in RECURRENT},
    "Einsum": _einsum,
}


def describe(
    operator: str, reads: Sequence[Value | None], writes: Sequence[Value | None], attributes: Mapping[str, object]
) -> Description:
    """What the operator is and costs at these shapes; `reads` by place, None where an input is left out."""
    if operator in _PLAIN:
        return Description(_PLAIN[operator])
    call = Call(reads, writes, attributes)
    try:
        rule = _RULES.get(operator)
        if rule is not None:
            return rule(call)
        if operator in _ELEMENTWISE:
            kind, flops = description.ELEMENTWISE[_ELEMENTWISE[operator]]
            return Description(kind, 0, floating(call.result, flops))
        if operator in _REDUCTIONS:
            return Description(OpKind.REDUCTION, 0, floating(call.given(0), _REDUCTIONS[operator]))
    except Untold:
        return UNKNOWN
    return UNKNOWN


def _norm_of(flops: int, *more: int) -> Rule:
    """A norm, with one operation more for each of these inputs that is given: weight, bias, what is added before."""

    def rule(call: Call) -> Description:
        return Description(OpKind.NORM, 0, floating(call.given(0), flops + call.has(*more)))

    return rule


def _batch_norm(call: Call) -> Description:
    flops = description.BATCH_NORM_IN_TRAINING if call.number("training_mode") else description.BATCH_NORM
    return Description(OpKind.BATCH_NORM, 0, floating(call.given(0), flops))


def _softmax(call: Call) -> Description:
    return Description(OpKind.SOFTMAX, 0, floating(call.result, description.SOFTMAX))


def _gelu(call: Call) -> Description:
    name = "gelu_tanh" if call.text("approximate") == "tanh" else "gelu"
    return Description(OpKind.ACTIVATION, 0, floating(call.result, description.ELEMENTWISE[name][1]))


def _gelu_of(name: str) -> Rule:
    """A gelu of the runtime; some add a bias first."""

    def rule(call: Call) -> Description:
        return Description(OpKind.ACTIVATION, 0, floating(call.result, description.ELEMENTWISE[name][1] + call.has(1)))

    return rule


def _quick_gelu(call: Call) -> Description:
    name = "silu" if call.attributes.get("alpha") == 1.0 else "quick_gelu"
    return Description(OpKind.ACTIVATION, 0, floating(call.result, description.ELEMENTWISE[name][1]))


def _one_after_another(call: Call) -> Description:
    """Any number of operands, broadcast together."""
    return Description(OpKind.ARITHMETIC, 0, floating(call.result, max(0, len(call.reads) - 1)))


def _mean_of_several(call: Call) -> Description:
    return Description(OpKind.ARITHMETIC, 0, floating(call.result, len(call.reads)))


def _pool(call: Call) -> Description:
    window = product(tuple(call.numbers("kernel_shape") or ()))
    return Description(OpKind.REDUCTION, 0, multiply(window, floating(call.result, 1)))


def _resized(call: Call) -> Description:
    mode, axes = call.text("mode", "nearest"), len(call.result.shape) - 2
    name = {"linear": _BY_AXES.get(axes, "trilinear"), "cubic": "bicubic"}.get(mode, "nearest")
    flops = description.INTERPOLATION[name]
    return Description(OpKind.OTHER if flops else OpKind.COPY, 0, floating(call.result, flops))


_BY_AXES = {0: "linear", 1: "linear", 2: "bilinear"}


def _sampled(call: Call) -> Description:
    return Description(OpKind.OTHER, 0, floating(call.result, description.INTERPOLATION["bilinear"]))


def _rounded(flops: int) -> Rule:
    """Quantization, counted on the numbers that are read: what it makes are integers."""

    def rule(call: Call) -> Description:
        return Description(OpKind.ARITHMETIC, 0, floating(call.given(0), flops))

    return rule


def _elementwise_of(flops: int) -> Rule:
    def rule(call: Call) -> Description:
        return Description(OpKind.ARITHMETIC, 0, floating(call.result, flops))

    return rule


def _local_norm(call: Call) -> Description:
    """Over neighbouring channels: squares, their sum, scale, shift, power, division."""
    return Description(OpKind.NORM, 0, floating(call.given(0), call.number("size") + 5))


_RULES: Mapping[str, Rule] = {
    **RULES,
    **dict.fromkeys(("LayerNormalization", "GroupNormalization"), _norm_of(description.LAYER_NORM, 1, 2)),
    **dict.fromkeys(("InstanceNormalization", "com.microsoft::GroupNorm"), _norm_of(description.LAYER_NORM, 1, 2)),
    "MeanVarianceNormalization": _norm_of(description.LAYER_NORM),
    "LpNormalization": _norm_of(description.RMS_NORM),
    "LRN": _local_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _norm_of(description.RMS_NORM, 1)),
    "com.microsoft::SkipLayerNormalization": _norm_of(description.LAYER_NORM, 1, 2, 3, 4),
    "com.microsoft::SkipSimplifiedLayerNormalization": _norm_of(description.RMS_NORM, 1, 2, 3),
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(SOFTMAXES, _softmax),
    "Gelu": _gelu,
    **{f"com.microsoft::{name}": _gelu_of("gelu") for name in ("Gelu", "BiasGelu")},
    "com.microsoft::FastGelu": _gelu_of("gelu_tanh"),
    "com.microsoft::QuickGelu": _quick_gelu,
    **dict.fromkeys(VARIADIC - {"Mean"}, _one_after_another),
    "Mean": _mean_of_several,
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    "GridSample": _sampled,
    "QuantizeLinear": _rounded(3),
    "DynamicQuantizeLinear": _rounded(5),
    "DequantizeLinear": _elementwise_of(2),
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft::RotaryEmbedding"), _elementwise_of(3)),
}

_ELEMENTWISE: Mapping[str, str] = {  # -> its name in the table that both worlds share
    **{name: name.lower() for name in ARITHMETIC | TRIGONOMETRIC | EXACT_UNARY | ACTIVATIONS - {"Gelu"}},
    **{name: name.lower() for name in ("Erf", "Exp", "Log", "PRelu", "Pow", "Reciprocal", "Sqrt")},
    "Mod": "fmod",
    "Clip": "clamp",
    "LeakyRelu": "leaky_relu",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Shrink": "softshrink",
    **dict.fromkeys(PREDICATES | BITWISE | CASTS | {"BitCast", "BitwiseNot", "Trilu", "Where"}, "where"),
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
    **dict.fromkeys(KEEPS_ORDER | READS_SHAPE, OpKind.VIEW),
    **dict.fromkeys(MOVES_DATA - KEEPS_ORDER - LOOKUPS | FILLS - {"Trilu"} | {"Col2Im", "Concat"}, OpKind.COPY),
    **dict.fromkeys(LOOKUPS | {*_SCATTERS, "Compress", "OneHot"}, OpKind.LOOKUP),
    **dict.fromkeys(RANDOM - {"Bernoulli", "Multinomial"} | {*_CREATED}, OpKind.CREATE),
    **dict.fromkeys(("Dropout", "Bernoulli"), OpKind.DROPOUT),  # a runtime leaves it out
    **{f"com.microsoft::QLinear{name}": OpKind.ARITHMETIC for name in ("Add", "Mul")},  # in integers, so no flops
    **{f"com.microsoft::QLinear{name}": OpKind.ACTIVATION for name in ("Sigmoid", "LeakyRelu")},
    **{
        f"com.microsoft::QLinear{name}": OpKind.REDUCTION for name in ("AveragePool", "GlobalAveragePool", "ReduceMean")
    },
    "com.microsoft::QLinearSoftmax": OpKind.SOFTMAX,
    "com.microsoft::QLinearConcat": OpKind.COPY,
    **dict.fromkeys(("TopK", "NonZero", "Unique", "NonMaxSuppression"), OpKind.OTHER),
    **dict.fromkeys(MAKES_SEQUENCE | OPTIONALS | {"ConcatFromSequence", "SequenceAt", "SequenceLength"}, OpKind.OTHER),
}
