"""Operators that once had numbers as attributes and now read them as inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.graph.opsets.adapter import CannotRaise, Rewrite, Step, rewritten
from sardonyx.graph.shapes import expr

_SINGLE = 4  # bytes


def axes(step: Step) -> Rewrite | None:
    """Squeeze, Unsqueeze and the reductions: axes as an input. None, or an empty list, means all of them."""
    given = step.node.attributes.get_ints("axes")
    if given is None:
        return None
    constants = {1: ("axes", _ints(given))} if given or step.node.op_type == "Unsqueeze" else {}
    return rewritten(step, constants, drop=["axes"])


def split(step: Step) -> Rewrite | None:
    """The sizes as an input; where there are none, the number of parts has to be given since 18.

    ONNX Runtime then refuses to split an empty axis, so parts of an axis that may be empty cannot be counted.
    """
    sizes = step.node.attributes.get_ints("split")
    if step.passes(13) and sizes is not None:
        return rewritten(step, {1: ("split", _ints(sizes))}, drop=["split"])
    if not step.passes(18) or sizes is not None or step.reads(1) is not None:
        return None
    parts, axis = len(step.node.outputs), step.node.attributes.get_int("axis", 0)
    shape = step.graph.shape(step.reads(0))
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if size == 0:
        return rewritten(step, {1: ("split", _ints([0] * parts))})
    if size is None or not expr.at_least(size, 1):
        raise CannotRaise("the axis that it splits may be empty, for which opset 18 has to name the sizes")
    return rewritten(step, num_outputs=parts)


def slice_(step: Step) -> Rewrite:
    """Starts, ends and axes as inputs."""
    attributes = step.node.attributes
    starts, ends, along = (attributes.get_ints(name) for name in ("starts", "ends", "axes"))
    if starts is None or ends is None:
        raise CannotRaise("it does not say where it starts and ends")
    constants = {
        1: ("starts", _ints(starts)),
        2: ("ends", _ints(ends)),
        3: ("axes", None if along is None else _ints(along)),
    }
    return rewritten(step, constants, drop=["starts", "ends", "axes"])


def top_k(step: Step) -> Rewrite:
    """The number of elements as an input."""
    k = step.node.attributes.get_int("k")
    if k is None:
        raise CannotRaise("it does not say how many")
    return rewritten(step, {1: ("k", _ints([k]))}, drop=["k"])


def dft(step: Step) -> Rewrite:
    """The axis as an input; what it is by default has changed."""
    axis = np.array(step.node.attributes.get_int("axis", 1), np.int64)
    return rewritten(step, {2: ("axis", axis)}, drop=["axis"])


def clip(step: Step) -> Rewrite:
    """The bounds as inputs of the same type; without a bound, both know the largest finite number."""
    low, high = (step.node.attributes.get_float(name) for name in ("min", "max"))
    dtype = np.dtype(np.float32) if low is None and high is None else step.dtype()
    constants = {
        1: ("min", None if low is None else np.array(low, dtype)),
        2: ("max", None if high is None else np.array(high, dtype)),
    }
    return rewritten(step, constants, drop=["min", "max"])


def pad(step: Step) -> Rewrite:
    """The widths, and what to fill in where it is not zero, as inputs."""
    widths = step.node.attributes.get_ints("pads")
    value = step.node.attributes.get_float("value", 0.0)
    if widths is None:
        raise CannotRaise("it does not say how much")
    is_default = value == 0 and math.copysign(1.0, value) > 0  # -0.0 is another fill
    with np.errstate(over="ignore"):  # a number too large for half precision fills with infinity
        fill = None if is_default else np.array(value, step.dtype())
    return rewritten(step, {1: ("pads", _ints(widths)), 2: ("value", fill)}, drop=["pads", "value"])


def dropout(step: Step) -> Rewrite | None:
    """The ratio as an input; it still does nothing, since training has to be asked for."""
    if step.returns(1):
        raise CannotRaise("its mask came to mean something else")
    if step.passes(12) and step.dtype().itemsize < _SINGLE:
        raise CannotRaise("ONNX Runtime does not run it in half precision in opset 12")
    ratio = step.node.attributes.get_float("ratio")
    if not step.passes(12) or ratio is None:
        return None
    return rewritten(step, {1: ("ratio", np.array(ratio, np.float32))}, drop=["ratio"])


def _ints(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)
