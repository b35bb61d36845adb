"""Convolutions with constant filters in 8-bit integers: computed in integers, or only stored in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.verbs.quantize import simulation, weights
from sardonyx.verbs.quantize.recipe import Product, Recipe, convolution


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
    channels = 0  # the axis of the outputs in what is multiplied by the scales

    @property
    def most(self) -> int:
        """The largest integer of a filter."""
        return weights.SIGNED_MOST

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters."""
        return convolution(node, graph)

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return the filters in integers, and the scales of the outputs."""
        matrix, shape = product.matrix, product.filters
        scales = weights.largest_scales(matrix.array(), 0, self.most)
        integers = weights.lazy(ir.DataType.INT8, shape, lambda: weights.signed(matrix, scales, shape))
        return integers, ir.Tensor(scales.reshape(self._by_channel(product)))

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the float32 filters and the convolution."""
        levels, scale = stored
        filters = op.Mul(op.Cast(levels, to=ir.DataType.FLOAT), scale)
        return op.like(product.nodes[-1], (product.activation, filters, product.bias))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the same in float32."""
        return (self._rounded(product, product.activation, stored, op),)

    def _by_channel(self, product: Product) -> tuple[int, ...]:
        """Return the shape of numbers of the outputs."""
        return tuple(-1 if axis == self.channels else 1 for axis in range(len(product.filters)))

    def _rounded(self, product: Product, activation: ir.Value, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the convolution with rounded filters."""
        tensor, scales = product.matrix.tensor, stored[1]

        def filters() -> Array:
            nearest = simulation.nearest_signed(tensor.numpy(), 0, simulation.read(scales).ravel(), self.most)
            return nearest.reshape(product.filters)

        rounded = op.constant(weights.simulated(product.filters, filters))
        return op.like(product.nodes[-1], (activation, rounded, product.bias))


class QuantizeConvolutions(QuantizeFilters):
    """Conv(x, W, b) => ConvInteger(q(x), q(W)) * (scale(x) * scale(W)) + b, for constant filters W.

    W becomes signed 8-bit integers with one scale for each output (of 7 bits on a CPU that adds 8-bit products with
    saturation); x is quantized at run time with the range of the whole tensor. Refuses filters in groups, which ONNX
    Runtime computes up to nine times slower in integers, few filters, and filters that are not float32. Helps because
    8-bit products are faster on most CPUs, and the filters take a quarter of the bytes.
    """

    name = "quantize-convolutions"
    needs = 11
    channels = 1

    @property
    def most(self) -> int:
        """The largest integer of a filter."""
        return weights.most_of_products()

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters that are not in groups."""
        if node.op_type == "Conv" and node.attributes.get_int("group", 1) != 1:
            return Refused("in groups, it is slower in integers", (node,))
        return super().find(node, graph)

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the convolution in integers, scaled to float32."""
        filters, scale = stored
        levels, step, zero = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
        attributes = dict(product.nodes[-1].attributes)
        total = op.Cast(op.node("ConvInteger", (levels, filters, zero), attributes)[0], to=ir.DataType.FLOAT)
        result = op.Mul(total, op.Mul(step, scale))
        if product.bias is None:
            return result
        return op.Add(result, op.Reshape(product.bias, op.constant(np.array(self._by_channel(product)))))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the same in float32."""
        return (self._rounded(product, simulation.dynamic_activation(product.activation, op), stored, op),)
