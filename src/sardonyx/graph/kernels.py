"""Element types for which ONNX Runtime has a CPU kernel, of the operators that rewrites make.

Measured with onnxruntime 1.31; `tests/graph/test_kernels.py` measures it anew. Operators that are not listed take every
type that their schema allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.graph.scopes import operator

Types = frozenset[ir.DataType]
_D = ir.DataType
_HALF_AND_SINGLE: Types = frozenset({_D.FLOAT16, _D.FLOAT})
_FLOATS: Types = _HALF_AND_SINGLE | {_D.DOUBLE}
_WIDE: Types = _FLOATS | {_D.INT32, _D.INT64, _D.UINT32, _D.UINT64}
_MOST: Types = _WIDE | {_D.INT8, _D.UINT8}
_NUMBERS: Types = _MOST | {_D.INT16, _D.UINT16}

KERNELS: Mapping[str, Types] = MappingProxyType(
    {
        **dict.fromkeys(("Add", "Div", "Mul", "Sub"), _NUMBERS),
        **dict.fromkeys(("Expand", "Equal"), _NUMBERS | {_D.BOOL}),
        **dict.fromkeys(("Clip", "Max", "Min"), _MOST),
        "Where": _MOST - {_D.UINT64} | {_D.STRING},
        "Pad": _MOST | {_D.BOOL},
        "Neg": _FLOATS | {_D.INT8, _D.INT16, _D.INT32, _D.INT64},
        "Relu": _FLOATS | {_D.INT8, _D.INT32},
        "MatMul": _WIDE,
        **dict.fromkeys(("Attention", "Gemm", "RMSNormalization", "Softmax"), _FLOATS),
        "LayerNormalization": _FLOATS | {_D.BFLOAT16},
        **dict.fromkeys(
            ("Conv", "ConvTranspose", "Gelu", "HardSigmoid", "HardSwish", "RotaryEmbedding"), _HALF_AND_SINGLE
        ),
        **dict.fromkeys((f"com.microsoft::{name}" for name in ("FastGelu", "FusedMatMul", "QuickGelu")), _FLOATS),
        **dict.fromkeys(
            (
                f"com.microsoft::{name}"
                for name in ("Attention", "BiasGelu", "FusedConv", "FusedGemm", "Gelu", "MultiHeadAttention")
            ),
            _HALF_AND_SINGLE,
        ),
        **dict.fromkeys(
            ("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"),
            _HALF_AND_SINGLE | {_D.BFLOAT16},
        ),
    }
)
_SECOND = frozenset({"Where"})  # whose first input is a condition


def decisive(node: ir.Node) -> ir.Value | None:
    """The operand whose element type chooses the kernel."""
    place = 1 if node.op_type in _SECOND else 0
    return node.inputs[place] if len(node.inputs) > place else None


def has_kernel(node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Whether the runtime can run a node of that element type, so far as is known."""
    types = KERNELS.get(operator(node))
    return types is None or dtype is None or dtype in types
