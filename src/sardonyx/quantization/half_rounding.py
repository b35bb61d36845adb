"""Rounding to float16 and bfloat16, written independently of numpy's own types, to check what is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.errors import VerificationFailed
from sardonyx.ir.storage import Array

_BLOCK = 1 << 20  # elements that are rounded at a time


def nearest_half(values: Array, least: float | None = None) -> Array:
    """Return the closest numbers that float16 can hold; finite ones are at least `least` if it is given.

    A float16 number is a multiple of 2^(e - 10), where 2^e is its power of two, at least 2^-14.
    """
    result = np.array(values, np.float32)
    flat = result.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        finite = np.isfinite(block)
        exact = np.where(finite, block, 0).astype(np.float64)
        if least is not None:
            exact = np.maximum(exact, least)
        _, exponent = np.frexp(exact)
        step = np.ldexp(1.0, np.maximum(exponent - 1, -14) - 10)
        block[finite] = (np.rint(exact / step) * step)[finite]
    return result


def nearest_bfloat16(values: Array) -> Array:
    """Return the closest finite numbers that bfloat16 can hold: the upper half of the bits, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def check_stored(
    value: ir.Value, source: ir.TensorProtocol, stored: ir.Value, nearest: Callable[[Array], Array]
) -> None:
    """Check that a constant in fewer bits has the numbers of its source, rounded.

    Raises:
        VerificationFailed: if it does not.
    """
    tensor = stored.const_value
    if tensor is None and (node := stored.producer()) is not None:  # a Constant node, in old files
        tensor = node.attributes["value"].as_tensor()
    assert tensor is not None
    if not np.array_equal(tensor.numpy().astype(np.float32), nearest(source.numpy()), equal_nan=True):
        raise VerificationFailed(
            f"the quantized constant {value.name!r} differs from its simulation",
            hint="nothing was written; `keep` its module, and report this",
        )
