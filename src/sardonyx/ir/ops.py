"""Traits of operators: the one table of what the ONNX operators do.

A trait is the set of operator names that have it, used as `node.op_type in MOVES_DATA`. Names belong to the default
domain unless a comment says otherwise; callers that meet other domains check the domain. A pass that supports only some
operators of a trait subtracts the others in its own file and states the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir
from msgspec import Struct

Operators: TypeAlias = frozenset[str]


def _named(names: str) -> Operators:
    return frozenset(names.split())


# Operators that only move data: every element of their results is an element of their first operand. Further operands
# are shapes, axes, repeats and indices.

VIEWS: Operators = _named("Flatten Reshape Squeeze Unsqueeze")
KEEPS_ORDER = VIEWS | {"Identity"}  # the same elements in the same order
PERMUTES: Operators = _named("DepthToSpace ReverseSequence SpaceToDepth Transpose")
REARRANGES = KEEPS_ORDER | PERMUTES  # every element once
REPEATS: Operators = _named("Expand Tile")
LOOKUPS: Operators = _named("Gather GatherElements GatherND")  # elements at the indices of the second operand
PARTS: Operators = _named("Gather Slice Split")  # the elements at some positions of an axis
SELECTS = LOOKUPS | PARTS  # some of the elements
MOVES_DATA = REARRANGES | REPEATS | SELECTS

FILLS: Operators = _named("CenterCropPad Pad Trilu")  # elements of the first operand, or one other number
CASTS: Operators = _named("Cast CastLike")

# Operators that compute element by element.

ARITHMETIC: Operators = _named("Add Div Mul Sub")
ORDERS: Operators = _named("Greater GreaterOrEqual Less LessOrEqual")
COMPARISONS = ORDERS | {"Equal"}
LOGIC: Operators = _named("And Or Xor")
BITWISE: Operators = _named("BitShift BitwiseAnd BitwiseOr BitwiseXor")
BINARY = ARITHMETIC | COMPARISONS | LOGIC | BITWISE | {"Mod", "Pow"}
VARIADIC: Operators = _named("Max Mean Min Sum")  # of any number of operands
BROADCASTS = BINARY | VARIADIC | {"Where"}  # every operand is broadcast to the shape of the result
PREDICATES = COMPARISONS | LOGIC | {"IsInf", "IsNaN", "Not"}  # results are true or false

# The same result, bit by bit, with the operands in another order. Not Max and Min, whose result for 0.0 and -0.0 or for
# two NaN may be either, and not Sum and Mean, which round after every operand.
COMMUTATIVE: Operators = _named("Add And BitwiseAnd BitwiseOr BitwiseXor Equal Mul Or Xor")

ACTIVATIONS: Operators = _named(
    "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Shrink Sigmoid Softplus Softsign Swish Tanh "
    "ThresholdedRelu"
)
TRIGONOMETRIC: Operators = _named("Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan")
# Unary operators whose results are exact: an element of the operand, its negative, a bound, an integer or a bool.
EXACT_UNARY: Operators = _named("Abs BitwiseNot Ceil Clip Floor IsInf IsNaN Neg Not Relu Round Sign ThresholdedRelu")
# A function of the element at the same position of the first operand; other operands (the bounds of Clip) are scalars.
UNARY = ACTIVATIONS | TRIGONOMETRIC | EXACT_UNARY | {"Cast", "Erf", "Exp", "Log", "Reciprocal", "Sqrt"}

# Operators that combine elements.

REDUCES: Operators = _named(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
SOFTMAXES: Operators = _named("Hardmax LogSoftmax Softmax")
LAYER_NORMS: Operators = _named("LayerNormalization SkipLayerNormalization EmbedLayerNormalization")
RMS_NORMS: Operators = _named("RMSNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization")
NORMALIZES = LAYER_NORMS | RMS_NORMS | {
    "BatchNormalization", "GroupNorm", "GroupNormalization", "InstanceNormalization", "LpNormalization",
    "MeanVarianceNormalization",
}  # fmt: skip
POOLS: Operators = _named("AveragePool LpPool MaxPool")
GLOBAL_POOLS: Operators = _named("GlobalAveragePool GlobalLpPool GlobalMaxPool")
RECURRENT: Operators = _named("GRU LSTM RNN")

MATRIX_PRODUCTS: Operators = _named("Gemm MatMul")  # of floating-point numbers, with a weight of rank 2
CONVOLUTIONS: Operators = _named("Conv ConvTranspose")
QUANTIZED_PRODUCTS: Operators = _named("MatMulInteger QLinearMatMul")
QUANTIZED_CONVOLUTIONS: Operators = _named("ConvInteger QLinearConv")
# Including operators of com.microsoft and of the runtime's layout domain.
ALL_PRODUCTS = MATRIX_PRODUCTS | QUANTIZED_PRODUCTS | {
    "DynamicQuantizeMatMul", "Einsum", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "GemmFastGelu",
    "MatMulIntegerToFloat", "MatMulNBits", "QGemm", "TransposeMatMul",
}  # fmt: skip
ALL_CONVOLUTIONS = CONVOLUTIONS | QUANTIZED_CONVOLUTIONS | {"DeformConv", "FusedConv", "NhwcConv", "NhwcFusedConv"}
GELUS: Operators = _named("BiasGelu FastGelu Gelu QuickGelu")  # the others are of com.microsoft

# What results depend on besides the values of the operands.

RANDOM: Operators = _named("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
READS_SHAPE: Operators = _named("Shape Size")  # the result depends on the shape of the operand alone
READS_SHAPE_AND_TYPE: Operators = _named("EyeLike")
READS_TYPE_OF_SECOND: Operators = _named("CastLike")

# Operators with bodies, on quantized numbers, and on values that are not tensors.

LOOPS: Operators = _named("Loop Scan")
CONTROL_FLOW = LOOPS | {"If"}
QUANTIZES: Operators = _named("DequantizeLinear DynamicQuantizeLinear QuantizeLinear")
MAKES_SEQUENCE: Operators = _named("SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SplitToSequence")
OPTIONALS: Operators = _named("Optional OptionalGetElement OptionalHasElement")


class AttentionOperands(Struct, frozen=True):
    """The indices of the operands of an attention operator; -1 if it has no such operand."""

    key: int  # -1: queries, keys and values are one operand, or are computed from one
    masks: tuple[int, ...] = ()
    past: tuple[int, ...] = ()  # keys and values, or both as one operand; output 1 + i continues the i-th of them
    bias: int = -1  # the mask that is added to the scores if it holds floating-point numbers
    causal: bool = False  # always, without an attribute


_ORT = "com.microsoft"
ATTENTION: Mapping[tuple[str, str], AttentionOperands] = MappingProxyType(
    {
        ("", "Attention"): AttentionOperands(1, (3,), (4, 5), bias=3),
        (_ORT, "Attention"): AttentionOperands(-1, (3, 5), (4,), bias=5),
        (_ORT, "QAttention"): AttentionOperands(-1, (5,), (8,)),
        (_ORT, "PackedAttention"): AttentionOperands(-1, (5,), bias=5),
        (_ORT, "LongformerAttention"): AttentionOperands(-1),
        (_ORT, "MultiHeadAttention"): AttentionOperands(1, (4, 5), (6, 7), bias=5),
        (_ORT, "PackedMultiHeadAttention"): AttentionOperands(1, (6,), bias=6),
        (_ORT, "DecoderMaskedMultiHeadAttention"): AttentionOperands(1, (), (5, 6)),
        (_ORT, "DecoderMaskedSelfAttention"): AttentionOperands(-1, (), (4,), causal=True),
        (_ORT, "GroupQueryAttention"): AttentionOperands(1, (), (3, 4), bias=10, causal=True),
        (_ORT, "SparseAttention"): AttentionOperands(1, (), (3, 4), causal=True),
        (_ORT, "PagedAttention"): AttentionOperands(1, (), (3, 4), causal=True),
    }
)
ATTENTION_NAMES: Operators = frozenset(name for _, name in ATTENTION)


def attention_operands(node: ir.Node) -> AttentionOperands | None:
    """Return the operands of an attention operator, or None for any other node."""
    return ATTENTION.get((node.domain, node.op_type))
