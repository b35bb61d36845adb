"""Summaries of constants for the page: smallest and largest number, and a histogram.

Numbers are read one tensor at a time, small ones first, and only up to a limit, so that memory and time follow the
graph and not the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from sardonyx.analysis.attributes import dtype_name
from sardonyx.records.run import WeightSummary

BINS = 24
_LARGEST = 1 << 22  # elements of a tensor that is read
_MOST = 1 << 25  # elements that are read of one graph
_LONGEST = 200  # characters of an attribute


def shortened(value: object) -> str:
    """Return the value of an attribute as text, cut if it is long."""
    text = ", ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def summaries(constants: Mapping[str, ir.TensorProtocol]) -> dict[str, WeightSummary]:
    """Return a summary of each constant, in the order given."""
    left, numbers = _MOST, dict[str, WeightSummary]()
    for name, tensor in sorted(constants.items(), key=lambda item: item[1].size):
        read = tensor.size <= min(left, _LARGEST) and _is_number(tensor.dtype)
        left -= tensor.size if read else 0
        numbers[name] = summary(tensor, read=read)
    return {name: numbers[name] for name in constants}


def summary(tensor: ir.TensorProtocol, *, read: bool = True) -> WeightSummary:
    """Return the type of a tensor and, if it is read, its numbers."""
    kind = f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
    if not read or not tensor.size:
        return WeightSummary(kind)
    values: Any = np.asarray(tensor.numpy()).astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    if not finite.size:
        return WeightSummary(kind, not_finite=values.size)
    low, high = float(finite.min()), float(finite.max())
    counts: Any = np.histogram(finite, bins=BINS, range=(low, high))[0] if high > low else ()
    return WeightSummary(kind, low, high, tuple(int(count) for count in counts), int(values.size - finite.size))


def _is_number(dtype: ir.DataType) -> bool:
    return dtype not in (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128, ir.DataType.UNDEFINED)
