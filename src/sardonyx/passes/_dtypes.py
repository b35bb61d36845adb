"""Element types: which casts preserve every value, and which values ONNX Runtime rounds to half precision.

A pass may look through a cast that preserves every value; any other cast is a computation.

ONNX Runtime computes an operator that has no half-precision kernel in single precision, between Casts that it inserts.
If two such operators follow each other it removes the Casts between them, even a Cast of the model itself, and with it
the rounding to half precision. A node between them that does nothing can therefore be what preserves the rounding,
overflow included.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.ir.facts import Facts

_D = ir.DataType
# Bits of magnitude that a type represents exactly, and whether it is signed.
INTEGERS: Mapping[ir.DataType, tuple[int, bool]] = MappingProxyType(
    {
        _D.BOOL: (1, False), _D.UINT8: (8, False), _D.UINT16: (16, False), _D.UINT32: (32, False),
        _D.UINT64: (64, False), _D.INT8: (7, True), _D.INT16: (15, True), _D.INT32: (31, True), _D.INT64: (63, True),
    }
)  # fmt: skip
FLOATS: Mapping[ir.DataType, int] = MappingProxyType(
    {_D.FLOAT16: 11, _D.BFLOAT16: 8, _D.FLOAT: 24, _D.DOUBLE: 53}  # bits of the significand
)
_WIDER = MappingProxyType(
    {_D.FLOAT16: (_D.FLOAT, _D.DOUBLE), _D.BFLOAT16: (_D.FLOAT, _D.DOUBLE), _D.FLOAT: (_D.DOUBLE,)}
)
# Operators with a half-precision kernel in ONNX Runtime 1.31. Cast is left out because the runtime may remove it.
_HALF_KERNELS = frozenset(
    {
        "Add", "Attention", "Clip", "Concat", "Conv", "Div", "Expand", "Flatten", "Gather", "Gemm", "Identity",
        "LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "RMSNormalization", "Relu",
        "Reshape", "RotaryEmbedding", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def preserves_values(source: ir.DataType | None, to: ir.DataType | int | None) -> bool:
    """Return whether a Cast from `source` to `to` preserves every value.

    False for unknown types, and for every cast that rounds, truncates or wraps: float to integer or bool, double to
    half, int64 to float.
    """
    if source is None or to is None:
        return False
    if source == to:
        return True
    if source in FLOATS:
        return to in _WIDER.get(source, ())
    if source not in INTEGERS:
        return False
    bits, signed = INTEGERS[source]
    if to in FLOATS:
        return bits <= FLOATS[_D(to)]
    if to not in INTEGERS:
        return False
    width, has_sign = INTEGERS[_D(to)]
    return bits <= width and (has_sign or not signed)


def is_rounded(value: ir.Value | None, graph: Facts) -> bool:
    """Return whether the runtime certainly rounds the value to its own type."""
    if value is None or graph.dtype(value) != ir.DataType.FLOAT16:
        return True
    node = value.producer()
    return node is None or node.op_type in _HALF_KERNELS
