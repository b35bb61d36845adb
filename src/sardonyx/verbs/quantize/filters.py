"""Convolutions with constant filters in 8-bit integers: computed in integers, or only stored in them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.verbs.quantize import simulation
from sardonyx.verbs.quantize.recipe import (
    Convolution,
    Product,
    Recipe,
    convolution,
    signed_integers,
)
from sardonyx.verbs.quantize.weights import (
    SIGNED_MOST,
    Matrix,
    largest_scales,
    lazy,
    most_of_products,
)


class QuantizeFilters(Recipe):
    """Conv(x, W, b) => Conv(x, Cast(q(W)) * scale, b), with one scale for each output of a constant W.

    W becomes signed 8-bit integers; x stays float32. ONNX Runtime computes the float32 filters once, when it loads the
    file. It would keep DequantizeLinear and compute it in every run, and its fastest convolutions need constant
    filters. Refuses a transposed convolution, few filters, and filters that are not float32. Helps because the filters
    take a quarter of the bytes; the time stays the same.
    """

    name = "quantize-filters"
    roots = ("Conv", "ConvTranspose")
    opset = 7

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters."""
        return convolution(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the float32 filters and the convolution."""
        assert isinstance(product, Convolution)
        levels, scale = self._filters(product, op, (-1, *[1] * (len(product.shape) - 1)), SIGNED_MOST)
        filters = op.Mul(op.Cast(levels, to=ir.DataType.FLOAT), scale)
        return op.like(product.nodes[-1], (product.activation, filters, product.bias))

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        return self._simulation(product, product.activation, SIGNED_MOST, op)

    def _filters(self, product: Product, op: Builder, scaled: tuple[int, ...], most: int) -> tuple[ir.Value, ...]:
        """Return the filters in integers and their scales, of a shape."""
        assert isinstance(product, Convolution)
        shape = product.shape

        def tensors(matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
            scales = largest_scales(matrix.array(), 0, most)
            integers = lazy(ir.DataType.INT8, shape, lambda: signed_integers(matrix, scales, shape))
            return integers, ir.Tensor(scales.reshape(scaled))

        return self.constants(product, op, tensors)

    def _simulation(self, product: Product, activation: ir.Value, most: int, op: Builder) -> ir.Value:
        assert isinstance(product, Convolution)
        filters = simulation.rounded_filters(product, most, op)
        return op.like(product.nodes[-1], (activation, filters, product.bias))


class QuantizeConvolutions(QuantizeFilters):
    """Conv(x, W, b) => ConvInteger(q(x), q(W)) * (scale(x) * scale(W)) + b, for constant filters W.

    W becomes signed 8-bit integers with one scale for each output (of 7 bits on a CPU that adds 8-bit products with
    saturation); x is quantized at run time with the range of the whole tensor. Refuses filters in groups, which ONNX
    Runtime computes up to nine times slower in integers, few filters, and filters that are not float32. Helps because
    8-bit products are faster on most CPUs, and the filters take a quarter of the bytes.
    """

    name = "quantize-convolutions"
    needs = 11

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters that are not in groups."""
        if node.op_type == "Conv" and node.attributes.get_int("group", 1) != 1:
            return Refused("in groups, it is slower in integers", (node,))
        return super().find(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the convolution in integers, scaled to float32."""
        assert isinstance(product, Convolution)
        channels = (1, -1, *[1] * (len(product.shape) - 2))
        filters, scale = self._filters(product, op, channels, most_of_products())
        levels, step, zero = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
        attributes = dict(product.nodes[-1].attributes)
        total = op.Cast(op.node("ConvInteger", (levels, filters, zero), attributes)[0], to=ir.DataType.FLOAT)
        result = op.Mul(total, op.Mul(step, scale))
        if product.bias is None:
            return result
        return op.Add(result, op.Reshape(product.bias, op.constant(np.array(channels))))

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        activation = simulation.dynamic_activation(product.activation, op)
        return self._simulation(product, activation, most_of_products(), op)
