"""What ONNX Runtime does on a CPU that neither the standard nor the schema of an operator says, each fact once.

Every row is measured again by `tests/ir/test_support.py` with the installed runtime. Code that depends on a fact names
its row. What other devices run is data in `devices/` (`device.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import ARITHMETIC, GLOBAL_POOLS, POOLS, RANDOM
from sardonyx.ir.scopes import operator

MEASURED = ("1.31.0", "1.31.1")  # versions of onnxruntime, on x86-64 (AVX-512, VNNI); rows of ARM on a Neoverse N1
MAX_IR_VERSION, MAX_OPSET = 13, 26  # the newest that it accepts

Types = frozenset[ir.DataType]
_D = ir.DataType
_HALF: Types = frozenset({_D.FLOAT16})
_HALF_AND_SINGLE: Types = _HALF | {_D.FLOAT}
_FLOATS: Types = _HALF_AND_SINGLE | {_D.DOUBLE}
_INTEGERS: Types = frozenset({_D.INT32, _D.INT64})
_WIDE: Types = _FLOATS | _INTEGERS | {_D.UINT32, _D.UINT64}
_BYTES_AND_WIDE: Types = _WIDE | {_D.INT8, _D.UINT8}
_NUMBERS: Types = _BYTES_AND_WIDE | {_D.INT16, _D.UINT16}


def _ort(names: str) -> list[str]:
    return [f"com.microsoft::{name}" for name in names.split()]


# Element types in which a model with the operator loads, for the operators that rewrites create. Operators that are not
# listed accept every type of their schema. The runtime may compute in another type, between Casts that it inserts.
KERNELS: Mapping[str, Types] = MappingProxyType(
    {
        **dict.fromkeys(ARITHMETIC, _NUMBERS),
        **dict.fromkeys(("Expand", "Equal"), _NUMBERS | {_D.BOOL}),
        **dict.fromkeys(("Clip", "Max", "Min"), _BYTES_AND_WIDE),
        "Where": _BYTES_AND_WIDE - {_D.UINT64} | {_D.STRING},
        "Pad": _BYTES_AND_WIDE | {_D.BOOL},
        "Neg": _FLOATS | {_D.INT8, _D.INT16, _D.INT32, _D.INT64},
        "Relu": _FLOATS | {_D.INT8, _D.INT32},
        "MatMul": _WIDE,
        **dict.fromkeys(("Attention", "Gemm", "RMSNormalization", "Softmax"), _FLOATS),
        "LayerNormalization": _FLOATS | {_D.BFLOAT16},
        **dict.fromkeys(
            ("Conv", "ConvTranspose", "Gelu", "HardSigmoid", "HardSwish", "RotaryEmbedding"), _HALF_AND_SINGLE
        ),
        **dict.fromkeys(_ort("FastGelu FusedMatMul QuickGelu"), _FLOATS),
        **dict.fromkeys(_ort("Attention BiasGelu FusedConv FusedGemm Gelu MultiHeadAttention"), _HALF_AND_SINGLE),
        **dict.fromkeys(
            _ort("SkipLayerNormalization SkipSimplifiedLayerNormalization"), _HALF_AND_SINGLE | {_D.BFLOAT16}
        ),
    }
)
# Operators that compute in float16 on some CPUs (ARM has kernels for all, x86 for some) and so round their results to
# it; all others compute in float32. Cast is left out because the runtime may remove it.
IN_HALF = frozenset(
    {
        "Add", "Attention", "Clip", "Concat", "Conv", "Div", "Expand", "Flatten", "Gather", "Gemm", "Identity",
        "LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "RMSNormalization", "Relu",
        "Reshape", "RotaryEmbedding", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# Operators of the standard without a kernel for doubles.
NOT_IN_DOUBLE = frozenset(
    {
        "AveragePool", "Conv", "ConvTranspose", "Erf", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization",
        "OneHot", "Resize",
    }
)  # fmt: skip


def has_kernel(node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Return whether the runtime can run the node with this element type, as far as is known."""
    types = KERNELS.get(operator(node))
    return types is None or dtype is None or dtype in types


class Cpus(StrEnum):
    """Where a fact holds."""

    ALL = "all"
    ARM = "ARM"
    SOME = "some"  # tried where it matters, or assumed everywhere


class Behavior(Struct, frozen=True):
    """What some operators do with operands of some types."""

    operators: frozenset[str]
    fact: str  # what happens, as refusals and notes say it
    response: str  # what is done about it
    types: Types = frozenset()  # of the operand that selects the kernel; empty for all
    opsets: range = range(1, MAX_OPSET + 1)
    cpus: Cpus = Cpus.ALL

    def concerns(self, name: str, dtype: ir.DataType | None = None, opset: int | None = None) -> bool:
        """Return whether an operator behaves so, or may if its type or opset is unknown."""
        is_type = dtype is None or not self.types or dtype in self.types
        return name in self.operators and is_type and (opset is None or opset in self.opsets)


# Wrong or unusual results.

GROUP_BIAS = Behavior(
    frozenset({"Conv"}),
    "the runtime adds a wrong bias to grouped convolutions in half precision",
    "nothing is folded into the bias; it adds that of the first group to all, unless each channel is a group",
    _HALF,
    cpus=Cpus.ARM,
)
ATTENTION_WIDTH = Behavior(
    frozenset({"Attention"}),
    "the runtime's half-precision kernel is wrong for values of this width",
    "no fusion where the width of the values leaves a remainder of 4 when divided by 8, which the kernel omits",
    _HALF,
    cpus=Cpus.SOME,
)
ATTENTION_LOWEST = Behavior(
    frozenset({"Attention"}),
    "the lowest finite number in a mask counts as -inf: a row of them is zeros, not the mean of the values",
    "the mask of a fusion has the next larger number instead",
    _HALF_AND_SINGLE,
)
ATTENTION_CACHE = Behavior(
    frozenset({"Attention"}),
    "it fails if the updated cache is not used",
    "a model with additional outputs keeps its own",
)
WHERE_SIGN = Behavior(
    frozenset({"Where"}),
    "the runtime's Where turns -0.0 into 0.0",
    "a Where stays if -0.0 may go through it, and signs of zeros are not compared after one",
    _FLOATS,
)
SIGN_OF_EXTREMES = Behavior(
    frozenset({"Max", "Min", "Clip", "Relu"}),
    "either of 0.0 and -0.0 may result, which may depend on the position of the element",
    "no fold or fusion where both meet, except of bounds that treat the same element in the same way",
    _FLOATS,
    cpus=Cpus.SOME,
)
INTEGER_POWER = Behavior(
    frozenset({"Pow"}),
    "integer powers are computed in double precision, which is inexact from 2 ** 53 on",
    "x ** 1 stays",
    _INTEGERS,
)
LAST_SLICE = Behavior(
    frozenset({"Slice"}),
    "backwards to the largest integer selects the whole axis; by the standard, nothing",
    "the positions are unknown",
)
HALF_ERF = Behavior(
    frozenset({"Erf"}),
    "ONNX Runtime's Erf in float16 is off by up to 0.005",
    "it stays in float32",
    _HALF,
    cpus=Cpus.ARM,
)
HALF_SUMS = Behavior(
    (POOLS | GLOBAL_POOLS) - {"MaxPool", "GlobalMaxPool"},
    "ONNX Runtime sums in float16",
    "averages of many numbers stay in float32",
    _HALF,
    cpus=Cpus.ARM,
)
SATURATION = Behavior(
    frozenset({"MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QLinearMatMul"}),
    "this CPU adds 8-bit products with saturation",  # x86 without VNNI
    "weights have 7 bits there (`weights.saturates` tries it)",
    frozenset({_D.UINT8}),
    cpus=Cpus.SOME,
)

# Models that do not load or run.

LACKS_22 = Behavior(
    RANDOM | {"GlobalLpPool", "MaxRoiPool", "RoiAlign"},  # Bernoulli is expanded to RandomUniformLike
    "ONNX Runtime does not run it in opset 22",
    "a model with one is not raised so far",
    opsets=range(22, MAX_OPSET + 1),
)
EMPTY_SPLIT = Behavior(
    frozenset({"Split"}),
    "an empty axis is not split into a number of parts",
    "raising to opset 18 states the sizes, or is refused if the axis may be empty",
    opsets=range(18, MAX_OPSET + 1),
)
EMPTY_IMAGE = Behavior(
    frozenset({"Conv"}),
    "empty images are not accepted",
    "no operator becomes a Conv if the image may be empty; the result of a Conv is not",
)
OLD_HALF_POOL = Behavior(
    frozenset({"MaxPool"}),
    "ONNX Runtime has no MaxPool in float16 below opset 12",
    "it stays in float32; optimizations for ARM turn it into an operator without a kernel",
    _HALF,
    range(8, 12),
    Cpus.ARM,
)

# Operators that are decomposed or slow.

HARD_SIGMOID = Behavior(
    frozenset({"HardSigmoid"}),
    "the runtime has a kernel for float only",
    "no fusion into one in other types, which it computes between Casts",
    _HALF,
)
HARD_SWISH = Behavior(
    frozenset({"HardSwish"}),
    "it is decomposed into HardSigmoid and Mul",
    "fusion with a Conv for the target ort",
)
HALF_GELU = Behavior(
    frozenset({"Gelu"}),
    "in half precision it is decomposed",  # 1.5 to 2.5 times slower than what it was fused from
    "a fusion casts to float and back, which is 11 times faster",
    _HALF,
)
SKIP_NORMALIZATION = Behavior(
    frozenset({"SkipLayerNormalization"}),
    "on a CPU the kernel takes 3 to 5 times as long as Add and LayerNormalization",
    "fusion on request only",
    frozenset({_D.FLOAT}),
)
GROUPED_INTEGERS = Behavior(
    frozenset({"ConvInteger"}),
    "in groups, it is slower in integers",  # up to nine times
    "filters in groups stay in float32, or become integers in memory alone",
    frozenset({_D.UINT8}),
)
GEMM_ZERO_POINTS = Behavior(
    frozenset({"Gemm"}),
    "a Gemm of dequantized operands is fused only if the weight has zero points",
    "they are written, all 0",
    frozenset({_D.INT8}),
)
