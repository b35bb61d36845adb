"""Which casts keep every value, so that a pass may look through them; all others are computations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

_D = ir.DataType

# Bits of magnitude a type holds exactly, and whether it has a sign.
INTEGERS: Mapping[ir.DataType, tuple[int, bool]] = MappingProxyType(
    {
        _D.BOOL: (1, False), _D.UINT8: (8, False), _D.UINT16: (16, False), _D.UINT32: (32, False),
        _D.UINT64: (64, False), _D.INT8: (7, True), _D.INT16: (15, True), _D.INT32: (31, True), _D.INT64: (63, True),
    }
)  # fmt: skip
FLOATS: Mapping[ir.DataType, int] = MappingProxyType(
    {_D.FLOAT16: 11, _D.BFLOAT16: 8, _D.FLOAT: 24, _D.DOUBLE: 53}  # all powers of two up to there are in range
)
_WIDER = MappingProxyType(
    {_D.FLOAT16: (_D.FLOAT, _D.DOUBLE), _D.BFLOAT16: (_D.FLOAT, _D.DOUBLE), _D.FLOAT: (_D.DOUBLE,)}
)


def preserves_values(source: ir.DataType | None, to: ir.DataType | int | None) -> bool:
    """Whether a Cast from `source` to `to` keeps every value: `to` holds all that `source` does.

    False for types that are not known, and for every cast that rounds, truncates or wraps: float to integer or bool,
    double to half, int64 to float.
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
