"""The arithmetic of quantized products in float32 (fake quantization), written independently of the recipes.

A simulated weight holds the numbers closest to the source that integers with the stored scales and zero points can
stand for. With moments of the activation, it holds what the stored integers stand for, if each is the closest to what
the errors of the rows before it ask for, or to the source. Numbers that lose more than those of plain rounding are not
used: recipes never return them, so the product then differs from its simulation. A simulated activation is quantized
and dequantized with float operators. A wrong zero point, axis or block in a recipe makes the product differ from its
simulation by far more than rounding.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder
from sardonyx.verbs.quantize.calibration import Range
from sardonyx.verbs.quantize.recipe import largest_of_rows, maximum_of_rows, scalar
from sardonyx.verbs.quantize.scales import upper_root
from sardonyx.verbs.quantize.weights import Blocks

_SAME_ERROR_FACTOR = 1.0001  # two squared errors are the same up to the rounding of their sums
_HALF_STEP = 0.51  # of a step: numbers between two integers may be rounded to either
_GROUP_ELEMENTS = 1 << 22  # elements that are computed at a time


def nearest_signed(values: Array, axis: int, stored: Array, most: int, least: Array | None = None) -> Array:
    """Return the closest numbers that signed integers with one stored scale for each slice along `axis` can hold.

    No scale is smaller than that of the slice in `least`, if it is given.
    """
    result = np.array(values, np.float32)
    for number, (one, step) in enumerate(zip(np.moveaxis(result, axis, 0), stored, strict=True)):
        largest = np.float32(np.abs(one).max())
        if largest > 0:
            usual = largest / np.float32(most) if least is None else max(largest / np.float32(most), least[number])
            plain, own = (np.clip(np.rint(one / each), -most, most) * each for each in (usual, step))
            is_better = _loss(own - one) <= _loss(plain - one) * _SAME_ERROR_FACTOR
            one[...] = own if is_better else plain
    return result


def held_in_blocks(blocks: Blocks, integers: Array, scales: Array, zeros: Array) -> Array:
    """Return what stored integers with scales and zero points of blocks stand for, or plain rounding if that is better.

    Without moments of the activation, these are the closest numbers that such integers can hold.

    With moments H, the error e of a column costs eᵀHe, which is at most that of plain rounding. With H = R Rᵀ, integer
    i stands for a number that is (Rᵀe)_i / R_ii from what the rows before it ask for: half a step, unless the range
    ends there. Otherwise all integers of a column are the closest to the source.
    """
    matrix, size, is_symmetric = blocks.matrix, blocks.size, blocks.is_symmetric
    result, most = np.array(matrix.array(), np.float32), np.float32(2**blocks.bits - 1)
    if matrix.moments is None:
        for number, start in enumerate(range(0, len(result), size)):
            block = result[start : start + size]
            plain = _plain(block, most, is_symmetric=is_symmetric)
            own = _unsigned(block, scales[number], zeros[number].astype(np.float32), most)
            block[...] = np.where(_loss(own - block) <= _loss(plain - block) * _SAME_ERROR_FACTOR, own, plain)
        return result
    moments = matrix.moments.array()
    root, step = upper_root(moments), max(1, _GROUP_ELEMENTS // len(result))
    for start in range(0, result.shape[1], step):
        columns = slice(start, start + step)
        weight, levels = result[:, columns], integers[:, columns]
        scale, zero = (np.repeat(each[:, columns], size, 0)[: len(result)] for each in (scales, zeros))
        held = (levels - zero.astype(np.float32)) * scale
        plain = np.concatenate(
            [_plain(weight[top : top + size], most, is_symmetric=is_symmetric) for top in range(0, len(weight), size)]
        )
        error = weight - held
        ordered = (root.T @ error) / root.diagonal()[:, None]
        is_closest = _is_closest(ordered, scale, levels, most) | _is_closest(error, scale, levels, most)
        cost, usual = (np.einsum("kc,kc->c", each, moments @ each) for each in (error, weight - plain))
        weight[...] = np.where(is_closest & (cost <= usual * _SAME_ERROR_FACTOR), held, plain)
    return result


def _is_closest(distance: Array, scale: Array, levels: Array, most: np.floating) -> Array:
    """Return for each column whether no number is further from its integer than half a step, within the range."""
    steps = distance / scale
    is_within = np.abs(steps) <= _HALF_STEP
    is_within |= (levels == 0) & (steps < 0) | (levels == most) & (steps > 0)
    return is_within.all(0)


def _plain(block: Array, most: np.floating, *, is_symmetric: bool) -> Array:
    """Return the closest numbers with the scale and the zero point that the range of each column asks for."""
    if is_symmetric:
        middle = (most + 1) / 2
        extreme = np.take_along_axis(block, np.abs(block).argmax(0)[None], 0)[0]
        step = (extreme / -middle).astype(ml_dtypes.bfloat16).astype(np.float32)
        return _unsigned(block, np.where(step == 0, np.float32(1), step), middle, most)
    low, high = np.minimum(block.min(0), np.float32(0)), np.maximum(block.max(0), np.float32(0))
    step = np.where(high > low, (high - low) / most, np.float32(1))
    return _unsigned(block, step, np.rint(-low / step), most)


def _unsigned(values: Array, step: Array, zero: Array | np.floating, most: np.floating) -> Array:
    return (np.clip(np.rint(values / step) + zero, 0, most) - zero) * step


def _loss(difference: Array) -> Array:
    """Return the squared error of each column."""
    return np.square(difference, dtype=np.float64).sum(0)


def dynamic_activation(value: ir.Value, op: Builder) -> ir.Value:
    """Build quantization to unsigned 8-bit integers with the range of the whole tensor, and back, with float operators.

    low = min(x, 0), high = max(x, 0), s = (high - low) / 255, z = round(-low / s): (clip(round(x / s) + z) - z) * s.
    """
    return _quantized(value, op.ReduceMin(value, keepdims=0), op.ReduceMax(value, keepdims=0), op)


def activation_by_steps(value: ir.Value, op: Builder) -> ir.Value:
    """Build the same for every part along the first axis, each with its own range."""
    flat = op.Reshape(value, op.constant(np.array([0, -1])))
    low = op.Neg(maximum_of_rows(op.Neg(flat), op))
    return op.Reshape(_quantized(flat, low, maximum_of_rows(flat, op), op), op.Shape(value))


def _quantized(value: ir.Value, low: ir.Value, high: ir.Value, op: Builder, least: int = 0) -> ir.Value:
    """Build the rounding to integers from `least` to `least` + 255, and back; the range always contains 0."""
    zero, levels, first, last = (op.constant(scalar(number)) for number in (0, 255, least, least + 255))
    low, high = op.Min(low, zero), op.Max(high, zero)
    span = op.Sub(high, low)
    step = op.Where(op.Equal(span, zero), op.constant(scalar(1)), op.Div(span, levels))
    center = op.Round(op.Sub(first, op.Div(low, step)))
    level = op.Clip(op.Add(op.Round(op.Div(value, step)), center), first, last)
    return op.Mul(op.Sub(level, center), step)


def activation_by_rows(value: ir.Value, op: Builder) -> ir.Value:
    """Build the quantization of rows that are divided by their largest element, and back."""
    largest = largest_of_rows(value, op)
    return op.Mul(dynamic_activation(op.Div(value, largest), op), largest)


def activation_in_blocks(value: ir.Value, rows: int, size: int, op: Builder, *, divides_once: bool) -> ir.Value:
    """Build the rounding of blocks of each row to signed 8-bit integers, and back, as rows × the summed axis.

    s = max |x| / 127 for each block of `size` elements: round(x * (1 / s)) * s, as ONNX Runtime computes on ARM CPUs.
    On x86 CPUs it is round(x * (127 / max |x|)) * s (`divides_once`): they differ where x is half of a step.
    """
    blocks, missing = -(-rows // size), -rows % size
    flat = op.Reshape(value, op.constant(np.array([-1, rows])))
    if missing:
        flat = op.Pad(flat, op.constant(np.array([0, 0, 0, missing])))
    split = op.Reshape(flat, op.constant(np.array([-1, blocks, size])))
    largest, most = largest_of_rows(split, op), op.constant(scalar(127))
    step = op.Div(largest, most)
    factor = op.Div(most, largest) if divides_once else op.Div(op.constant(scalar(1)), step)
    level = op.Round(op.Mul(split, factor))
    whole = op.Reshape(op.Mul(level, step), op.constant(np.array([-1, blocks * size])))
    zero, end, axis = (op.constant(np.array([number])) for number in (0, rows, 1))
    return op.Slice(whole, zero, end, axis) if missing else whole


def activation_in_rows(value: ir.Value, rows: int, op: Builder) -> ir.Value:
    """Build the rounding of rows to signed 8-bit integers with a zero point, and back, as rows × the summed axis."""
    flat = op.Reshape(value, op.constant(np.array([-1, rows])))
    low = op.Neg(maximum_of_rows(op.Neg(flat), op))
    return _quantized(flat, low, maximum_of_rows(flat, op), op, least=-128)


def read(stored: ir.Value) -> Array:
    """Return the values of a constant."""
    assert stored.const_value is not None
    return stored.const_value.numpy()


def rounded_activation(value: ir.Value, limits: Range, op: Builder) -> ir.Value:
    """Build (clip(round(x / s) + z, 0, 255) - z) * s, with s = (high - low) / 255 and z = round(-low / s).

    In a symmetric range, it is clip(round(x / s), -128, 127) * s with s = high / 127.
    """
    size, middle, first, last = _grid(limits)
    step, center = op.constant(scalar(size)), op.constant(scalar(middle))
    level = op.Add(op.Round(op.Div(value, step)), center)
    level = op.Clip(level, op.constant(scalar(first)), op.constant(scalar(last)))
    return op.Mul(op.Sub(level, center), step)


def limited(value: ir.Value, limits: Range, op: Builder) -> ir.Value:
    """Build the value without what lies outside of its range."""
    size, middle, first, last = _grid(limits)
    return op.Clip(value, *(op.constant(scalar((end - middle) * size)) for end in (first, last)))


def step_of(limits: Range) -> float:
    """Return the step between numbers in a range."""
    return _grid(limits)[0]


def _grid(limits: Range) -> tuple[float, float, int, int]:
    """Return the step between numbers in a range, the integer of 0, and the smallest and the largest integer."""
    if limits.is_symmetric:
        return float(np.float32(limits.high / 127)), 0.0, -128, 127
    step = float(np.float32((limits.high - limits.low) / 255))
    return step, float(np.rint(-limits.low / step)), 0, 255
