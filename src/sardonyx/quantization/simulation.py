"""The arithmetic of quantized products in float32 (fake quantization), written independently of the recipes.

A simulated weight holds the numbers that the integers stand for; a simulated activation is quantized and dequantized
with float operators. A wrong zero point, axis or block in a recipe makes the product differ from its simulation by far
more than rounding.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder
from sardonyx.quantization.recipe import Product, scalar, with_bias
from sardonyx.quantization.weights import lazy


def nearest_signed(values: Array, axis: int) -> Array:
    """Return the closest numbers that signed 8-bit integers with one scale for each slice along `axis` can hold."""
    result = np.array(values, np.float32)
    for one in np.moveaxis(result, axis, 0):
        largest = np.float32(np.abs(one).max())
        if largest > 0:
            step = largest / np.float32(127)
            one[...] = np.rint(one / step) * step
    return result


def nearest_in_blocks(weight: Array, bits: int, size: int) -> Array:
    """Return the closest numbers that unsigned integers with a scale and zero point for each block can hold."""
    result = np.array(weight, np.float32)
    most = np.float32(2**bits - 1)
    for start in range(0, len(result), size):
        block = result[start : start + size]
        low, high = np.minimum(block.min(0), np.float32(0)), np.maximum(block.max(0), np.float32(0))
        step = np.where(high > low, (high - low) / most, np.float32(1))
        zero: Array = np.rint(-low / step)
        block[...] = (np.clip(np.rint(block / step) + zero, 0, most) - zero) * step
    return result


def dynamic_activation(value: ir.Value, op: Builder) -> ir.Value:
    """Build quantization to unsigned 8-bit integers with the range of the whole tensor, and back, with float operators.

    low = min(x, 0), high = max(x, 0), s = (high - low) / 255, z = round(-low / s): (clip(round(x / s) + z) - z) * s.
    """
    zero, most = op.constant(scalar(0)), op.constant(scalar(255))
    low = op.Min(op.ReduceMin(value, keepdims=0), zero)
    high = op.Max(op.ReduceMax(value, keepdims=0), zero)
    span = op.Sub(high, low)
    step = op.Where(op.Equal(span, zero), op.constant(scalar(1)), op.Div(span, most))
    center = op.Round(op.Div(op.Sub(zero, low), step))
    level = op.Clip(op.Add(op.Round(op.Div(value, step)), center), zero, most)
    return op.Mul(op.Sub(level, center), step)


def product_of_columns(product: Product, op: Builder) -> ir.Value:
    """Build the product of a dynamically quantized activation and a weight with one scale for each column."""
    matrix = product.matrix
    weight = lazy(ir.DataType.FLOAT, (matrix.rows, matrix.columns), lambda: nearest_signed(matrix.array(), 1))
    activation = dynamic_activation(product.activation, op)
    return with_bias(product, op.MatMul(activation, op.constant(weight)), op)


def product_of_blocks(product: Product, bits: int, size: int, op: Builder) -> ir.Value:
    """Build the product with a weight in blocks, which leaves the activation in float32."""
    matrix = product.matrix
    weight = lazy(
        ir.DataType.FLOAT, (matrix.rows, matrix.columns), lambda: nearest_in_blocks(matrix.array(), bits, size)
    )
    return with_bias(product, op.MatMul(product.activation, op.constant(weight)), op)


def lookup_of_rows(product: Product, op: Builder) -> ir.Value:
    """Build the lookup in a table with one scale for each row."""
    tensor = product.matrix.tensor
    table = lazy(ir.DataType.FLOAT, tuple(tensor.shape.numpy()), lambda: nearest_signed(tensor.numpy(), 0))
    return op.Gather(op.constant(table), product.activation, axis=0)
