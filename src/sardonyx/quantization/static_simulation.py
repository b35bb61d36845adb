"""The arithmetic of static quantization and of convolutions in float32, written independently of the recipes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder
from sardonyx.quantization.calibration import Range
from sardonyx.quantization.convolutions import Convolution
from sardonyx.quantization.recipe import scalar
from sardonyx.quantization.static_products import StaticProduct
from sardonyx.quantization.weights import simulated


def of(product: StaticProduct, op: Builder) -> ir.Value:
    """Build the product of rounded operands in float32.

    A constant bias is rounded to multiples of the product of the steps of both operands.
    """
    node, padding, limits = product.node, product.padding, product.limits
    tensor, bias, axis = product.matrix.tensor, product.bias_values, 0 if product.matrix.is_transposed else 1

    def steps() -> list[np.float32]:
        return _weight_steps(tensor.numpy(), axis, bias, _step(limits), product.most)

    def weight() -> Array:
        values = _rounded_weight(tensor.numpy(), axis, steps())
        return values.reshape(product.shape) if product.is_filter or axis == 1 else values.T

    stored = op.constant(simulated(product.shape, weight))
    activation = rounded_activation(product.source, limits, op)
    added = product.bias
    if bias is not None:
        rounded = simulated(bias.shape, lambda: _rounded_bias(bias, steps(), _step(limits)))
        added = op.constant(rounded)
    if node.op_type == "Conv":
        padded = activation if padding is None else op.like(padding, (activation, *padding.inputs[1:]))
        return op.like(node, (padded, stored, added))
    result = op.MatMul(activation, stored)
    return result if added is None else op.Add(result, added)


def rounded_filters(product: Convolution, most: int, op: Builder) -> ir.Value:
    """Return filters rounded to the numbers that signed integers with one scale for each output can hold."""
    tensor, shape = product.matrix.tensor, product.shape

    def filters() -> Array:
        values = tensor.numpy()
        return _rounded_weight(values, 0, _weight_steps(values, 0, None, 1.0, most)).reshape(shape)

    return op.constant(simulated(shape, filters))


def rounded_activation(value: ir.Value, limits: Range, op: Builder) -> ir.Value:
    """Build (clip(round(x / s) + z, 0, 255) - z) * s, with s = (high - low) / 255 and z = round(-low / s).

    In a symmetric range, it is clip(round(x / s), -128, 127) * s with s = high / 127.
    """
    step, center = op.constant(scalar(_step(limits))), op.constant(scalar(_center(limits)))
    level = op.Add(op.Round(op.Div(value, step)), center)
    level = op.Clip(level, *(op.constant(scalar(end)) for end in _ends(limits)))
    return op.Mul(op.Sub(level, center), step)


def limited(value: ir.Value, limits: Range, op: Builder) -> tuple[ir.Value, float]:
    """Build the value without what lies outside of its range, and return the step between numbers in this range."""
    step, center = _step(limits), _center(limits)
    low, high = (op.constant(scalar((end - center) * step)) for end in _ends(limits))
    return op.Clip(value, low, high), step


def _ends(limits: Range) -> tuple[int, int]:
    """Return the smallest and the largest integer."""
    return (-128, 127) if limits.is_symmetric else (0, 255)


def _step(limits: Range) -> float:
    if limits.is_symmetric:
        return float(np.float32(limits.high / 127))
    return float(np.float32((limits.high - limits.low) / 255))


def _center(limits: Range) -> float:
    return 0.0 if limits.is_symmetric else float(np.rint(-limits.low / _step(limits)))


def _weight_steps(values: Array, axis: int, bias: Array | None, step: float, most: int) -> list[np.float32]:
    """Return the step of each output: a share of its largest weight, or 2 ** -30 of its bias divided by `step`."""
    steps: list[np.float32] = []
    for number, one in enumerate(np.moveaxis(values, axis, 0)):
        own = np.float32(np.abs(one).max()) / np.float32(most)
        least = np.float32(0 if bias is None else abs(bias[number]) / (step * 2.0**30))
        steps.append(max(own if own > 0 else np.float32(1), least))
    return steps


def _rounded_weight(values: Array, axis: int, steps: Sequence[np.float32]) -> Array:
    result = np.array(values, np.float32)
    for one, own in zip(np.moveaxis(result, axis, 0), steps, strict=True):
        one[...] = np.rint(one / own) * own
    return result


def _rounded_bias(bias: Array, steps: Sequence[np.float32], step: float) -> Array:
    units = np.array(steps) * np.float32(step)
    return (np.rint(bias / units.astype(np.float64)) * units).astype(np.float32)
