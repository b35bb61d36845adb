"""Conv(x, W, b) => Conv(x, DequantizeLinear(q(W), scale), b), with one scale for each output of a constant W.

W becomes signed 8-bit integers; x stays float32. Needs opset 13. Refuses a transposed convolution, few filters, and
filters that are not float32. Helps because the filters take a quarter of the bytes; the time stays the same.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import static_simulation
from sardonyx.quantization.convolutions import Convolution, column_scales, convolution, filter_integers
from sardonyx.quantization.recipe import Product, Recipe
from sardonyx.quantization.weights import SIGNED_MOST, Matrix, lazy


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
