"""Convolutions with constant filters in 8-bit integers: computed in integers, or dequantized before the convolution.

Conv(x, W, b) => ConvInteger(q(x), q(W)) * (scale(x) * scale(W)) + b, for constant filters W.

W becomes signed 8-bit integers with one scale for each output (of 7 bits on a CPU that adds 8-bit products with
saturation); x is quantized at run time with the range of the whole tensor. Refuses filters in groups, which ONNX
Runtime computes up to nine times slower in integers, few filters, and filters that are not float32. Helps because 8-bit
products are faster on most CPUs, and the filters take a quarter of the bytes.

Conv(x, W, b) => Conv(x, DequantizeLinear(q(W), scale), b), with one scale for each output of a constant W.

W becomes signed 8-bit integers; x stays float32. Needs opset 13. Refuses a transposed convolution, few filters, and
filters that are not float32. Helps because the filters take a quarter of the bytes; the time stays the same.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.verbs.quantize import simulation
from sardonyx.verbs.quantize import simulation as static_simulation
from sardonyx.verbs.quantize.recipe import Convolution, Product, Recipe, column_scales, convolution, filter_integers
from sardonyx.verbs.quantize.weights import REDUCED_MOST, SIGNED_MOST, Matrix, lazy, saturates


class QuantizeConvolutions(Recipe):
    """Convolutions in 8-bit integers, with activations quantized at run time."""

    name = "quantize-convolutions"
    roots = ("Conv", "ConvTranspose")
    opset = 7
    needs = 11

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters."""
        if node.op_type == "Conv" and node.attributes.get_int("group", 1) != 1:
            return Refused("in groups, it is slower in integers", (node,))
        return convolution(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the convolution in integers, scaled to float32."""
        assert isinstance(product, Convolution)
        shape, most, channels = product.shape, _most(), (1, -1, *[1] * (len(product.shape) - 2))

        def tensors(matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
            scales = column_scales(matrix, most)
            integers = lazy(ir.DataType.INT8, shape, lambda: filter_integers(matrix, scales, shape))
            return integers, ir.Tensor(scales.reshape(channels))

        filters, scale = self.constants(product, op, tensors)
        levels, step, zero = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
        attributes = dict(product.nodes[-1].attributes)
        total = op.Cast(op.node("ConvInteger", (levels, filters, zero), attributes)[0], to=ir.DataType.FLOAT)
        result = op.Mul(total, op.Mul(step, scale))
        return (
            result
            if product.bias is None
            else op.Add(result, op.Reshape(product.bias, op.constant(np.array(channels))))
        )

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        assert isinstance(product, Convolution)
        filters = static_simulation.rounded_filters(product, _most(), op)
        activation = simulation.dynamic_activation(product.activation, op)
        return op.like(product.nodes[-1], (activation, filters, product.bias))


def _most() -> int:
    return REDUCED_MOST if saturates() else SIGNED_MOST


class QuantizeFilters(Recipe):
    """Filters in 8-bit integers, dequantized before the convolution."""

    name = "quantize-filters"
    roots = ("Conv", "ConvTranspose")
    opset = 7
    needs = 13  # the first with scales for each channel

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters."""
        return convolution(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the dequantized filters and the convolution."""
        assert isinstance(product, Convolution)
        shape = product.shape

        def tensors(matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
            scales = column_scales(matrix, SIGNED_MOST)
            integers = lazy(ir.DataType.INT8, shape, lambda: filter_integers(matrix, scales, shape))
            return integers, ir.Tensor(scales)

        filters = op.DequantizeLinear(*self.constants(product, op, tensors), axis=0)
        return op.like(product.nodes[-1], (product.activation, filters, product.bias))

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        assert isinstance(product, Convolution)
        filters = static_simulation.rounded_filters(product, SIGNED_MOST, op)
        return op.like(product.nodes[-1], (product.activation, filters, product.bias))
