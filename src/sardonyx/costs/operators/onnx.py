"""What ONNX operators are and cost: the standard's, and those of ONNX Runtime that our passes write.

Operators go by name, the runtime's with their domain ("com.microsoft::BiasGelu"). Here a slice or a transposition is a
copy, since the runtime makes one; only what it hands on in place is a view. What is in no table is not known, and so is
one whose sizes do not follow from the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.costs.operators import onnx_products, table
from sardonyx.costs.operators.call import Call, Untold
from sardonyx.costs.operators.description import UNKNOWN, Description, floating
from sardonyx.costs.operators.onnx_products import Rule
from sardonyx.costs.program import Kind, Value
from sardonyx.graph.shapes.expr import multiply, product

SHARING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})  # results lie where the input lies


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
            kind, flops = table.ELEMENTWISE[_ELEMENTWISE[operator]]
            return Description(kind, 0, floating(call.result, flops))
        if operator in _REDUCTIONS:
            return Description(Kind.REDUCTION, 0, floating(call.given(0), _REDUCTIONS[operator]))
    except Untold:
        return UNKNOWN
    return UNKNOWN


def _norm_of(flops: int, *more: int) -> Rule:
    """A norm, with one operation more for each of these inputs that is given: weight, bias, what is added before."""

    def rule(call: Call) -> Description:
        return Description(Kind.NORM, 0, floating(call.given(0), flops + call.has(*more)))

    return rule


def _batch_norm(call: Call) -> Description:
    flops = table.BATCH_NORM_IN_TRAINING if call.number("training_mode") else table.BATCH_NORM
    return Description(Kind.BATCH_NORM, 0, floating(call.given(0), flops))


def _softmax(call: Call) -> Description:
    return Description(Kind.SOFTMAX, 0, floating(call.result, table.SOFTMAX))


def _gelu(call: Call) -> Description:
    name = "gelu_tanh" if call.text("approximate") == "tanh" else "gelu"
    return Description(Kind.ACTIVATION, 0, floating(call.result, table.ELEMENTWISE[name][1]))


def _gelu_of(name: str) -> Rule:
    """A gelu of the runtime; some add a bias first."""

    def rule(call: Call) -> Description:
        return Description(Kind.ACTIVATION, 0, floating(call.result, table.ELEMENTWISE[name][1] + call.has(1)))

    return rule


def _quick_gelu(call: Call) -> Description:
    name = "silu" if call.attributes.get("alpha") == 1.0 else "quick_gelu"
    return Description(Kind.ACTIVATION, 0, floating(call.result, table.ELEMENTWISE[name][1]))


def _one_after_another(call: Call) -> Description:
    """Any number of operands, broadcast together."""
    return Description(Kind.ARITHMETIC, 0, floating(call.result, max(0, len(call.reads) - 1)))


def _mean_of_several(call: Call) -> Description:
    return Description(Kind.ARITHMETIC, 0, floating(call.result, len(call.reads)))


def _pool(call: Call) -> Description:
    window = product(tuple(call.numbers("kernel_shape") or ()))
    return Description(Kind.REDUCTION, 0, multiply(window, floating(call.result, 1)))


def _resized(call: Call) -> Description:
    mode, axes = call.text("mode", "nearest"), len(call.result.shape) - 2
    name = {"linear": _BY_AXES.get(axes, "trilinear"), "cubic": "bicubic"}.get(mode, "nearest")
    flops = table.INTERPOLATION[name]
    return Description(Kind.OTHER if flops else Kind.COPY, 0, floating(call.result, flops))


_BY_AXES = {0: "linear", 1: "linear", 2: "bilinear"}


def _sampled(call: Call) -> Description:
    return Description(Kind.OTHER, 0, floating(call.result, table.INTERPOLATION["bilinear"]))


def _rounded(flops: int) -> Rule:
    """Quantization, counted on the numbers that are read: what it makes are integers."""

    def rule(call: Call) -> Description:
        return Description(Kind.ARITHMETIC, 0, floating(call.given(0), flops))

    return rule


def _elementwise_of(flops: int) -> Rule:
    def rule(call: Call) -> Description:
        return Description(Kind.ARITHMETIC, 0, floating(call.result, flops))

    return rule


def _local_norm(call: Call) -> Description:
    """Over neighbouring channels: squares, their sum, scale, shift, power, division."""
    return Description(Kind.NORM, 0, floating(call.given(0), call.number("size") + 5))


_RULES: Mapping[str, Rule] = {
    **onnx_products.RULES,
    **dict.fromkeys(("LayerNormalization", "GroupNormalization"), _norm_of(table.LAYER_NORM, 1, 2)),
    **dict.fromkeys(("InstanceNormalization", "com.microsoft::GroupNorm"), _norm_of(table.LAYER_NORM, 1, 2)),
    "MeanVarianceNormalization": _norm_of(table.LAYER_NORM),
    "LpNormalization": _norm_of(table.RMS_NORM),
    "LRN": _local_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _norm_of(table.RMS_NORM, 1)),
    "com.microsoft::SkipLayerNormalization": _norm_of(table.LAYER_NORM, 1, 2, 3, 4),
    "com.microsoft::SkipSimplifiedLayerNormalization": _norm_of(table.RMS_NORM, 1, 2, 3),
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    "Gelu": _gelu,
    **{f"com.microsoft::{name}": _gelu_of("gelu") for name in ("Gelu", "BiasGelu")},
    "com.microsoft::FastGelu": _gelu_of("gelu_tanh"),
    "com.microsoft::QuickGelu": _quick_gelu,
    **dict.fromkeys(("Max", "Min", "Sum"), _one_after_another),
    "Mean": _mean_of_several,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    "GridSample": _sampled,
    "QuantizeLinear": _rounded(3),
    "DynamicQuantizeLinear": _rounded(5),
    "DequantizeLinear": _elementwise_of(2),
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft::RotaryEmbedding"), _elementwise_of(3)),
}

_ELEMENTWISE: Mapping[str, str] = {  # -> its name in the table that both worlds share
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Exp", "Log", "Sqrt", "Pow", "Erf")},
    **{name: name.lower() for name in ("Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh")},
    **{name: name.lower() for name in ("Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "Sign", "Tanh", "Relu")},
    **{name: name.lower() for name in ("Sigmoid", "Elu", "Selu", "Celu", "Mish", "Softplus", "Softsign", "PRelu")},
    "Mod": "fmod",
    "Clip": "clamp",
    "LeakyRelu": "leaky_relu",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Shrink": "softshrink",
    **dict.fromkeys(("Where", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And"), "where"),
    **dict.fromkeys(("Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), "where"),
    **dict.fromkeys(("IsNaN", "IsInf", "Cast", "CastLike", "BitCast", "Trilu"), "where"),
}

_REDUCTIONS: Mapping[str, int] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSum"), 1),
    **dict.fromkeys(("ArgMax", "ArgMin", "CumSum", "CumProd", "GlobalAveragePool", "GlobalMaxPool"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "GlobalLpPool"), 2),
    "ReduceLogSumExp": 3,
}

_COPIES = ("Transpose", "Concat", "Split", "Slice", "Pad", "Tile", "Expand", "DepthToSpace", "SpaceToDepth")
_LOOKUPS = ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "OneHot", "Compress")
_CREATED = ("Constant", "ConstantOfShape", "Range", "EyeLike", "RandomNormal", "RandomNormalLike", "RandomUniform")
_UNCOUNTED = ("TopK", "NonZero", "Unique", "NonMaxSuppression", "SequenceAt", "SequenceConstruct", "SequenceEmpty")
_PLAIN: Mapping[str, Kind] = {
    **dict.fromkeys((*SHARING, "Shape", "Size"), Kind.VIEW),
    **dict.fromkeys((*_COPIES, "ReverseSequence", "CenterCropPad", "Col2Im"), Kind.COPY),
    **dict.fromkeys((*_LOOKUPS, "TensorScatter"), Kind.LOOKUP),
    **dict.fromkeys((*_CREATED, "RandomUniformLike", "HannWindow", "HammingWindow", "BlackmanWindow"), Kind.CREATE),
    **dict.fromkeys(("Dropout", "Bernoulli"), Kind.DROPOUT),  # a runtime leaves it out
    **{f"com.microsoft::QLinear{name}": Kind.ARITHMETIC for name in ("Add", "Mul")},  # in integers, so no flops
    **{f"com.microsoft::QLinear{name}": Kind.ACTIVATION for name in ("Sigmoid", "LeakyRelu")},
    **{f"com.microsoft::QLinear{name}": Kind.REDUCTION for name in ("AveragePool", "GlobalAveragePool", "ReduceMean")},
    "com.microsoft::QLinearSoftmax": Kind.SOFTMAX,
    "com.microsoft::QLinearConcat": Kind.COPY,
    **dict.fromkeys(_UNCOUNTED, Kind.OTHER),
    **dict.fromkeys(("SequenceInsert", "SequenceErase", "SequenceLength", "SplitToSequence"), Kind.OTHER),
    **dict.fromkeys(("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"), Kind.OTHER),
}
