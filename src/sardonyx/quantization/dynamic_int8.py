"""MatMul(x, W) => MatMulInteger(q(x / m), q(W)) * (scale(x / m) * scale(W)) * m, for a constant W; Gemm likewise.

W becomes signed 8-bit integers with one scale for each column. Each row of x is divided by its largest magnitude m, and
quantized at run time to unsigned 8-bit integers with the range of the whole x / m, so that a row with large values does
not take precision from the others. With samples of x, its large elements are smoothed. On a CPU that adds 8-bit
products with saturation, W has 7 bits. Refuses a small weight, one that is not float32, and a product inside a body.
Helps because 8-bit products are faster on most CPUs, and the weight takes a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.error_compensation import Moments
from sardonyx.quantization.recipe import (
    PRODUCTS,
    Product,
    Recipe,
    Selection,
    largest_of_rows,
    matrix_product,
    with_bias,
)
from sardonyx.quantization.saturation import REDUCED_MOST, saturates
from sardonyx.quantization.smoothing import smoothed, smoothing
from sardonyx.quantization.weights import Matrix


class QuantizeDynamically(Recipe):
    """Products in 8-bit integers, with activations quantized at run time."""

    name = "quantize-dynamically"
    roots = PRODUCTS
    opset = 7
    needs = 11  # the first with DynamicQuantizeLinear
    is_fusible = True

    def __init__(
        self,
        selection: Selection | None = None,
        *,
        simulate: bool = False,
        moments: Mapping[str, Moments] | None = None,
    ) -> None:
        """Use fewer integers on a CPU that would saturate."""
        super().__init__(selection, simulate=simulate, moments=moments)
        self._factors: dict[Matrix, Array | None] = {}
        self.most = REDUCED_MOST if saturates() else weights.SIGNED_MOST

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with a constant weight."""
        return matrix_product(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the product in integers, scaled to float32."""
        weight, scale = self.integers(product, op)
        activation = product.activation
        if (factors := self._smoothing(product.matrix)) is not None:
            activation = op.Mul(activation, op.constant(1 / factors))
        largest = largest_of_rows(activation, op)
        levels, step, zero = op.node("DynamicQuantizeLinear", (op.Div(activation, largest),), outputs=3)
        total = op.Cast(op.MatMulInteger(levels, weight, zero), to=ir.DataType.FLOAT)
        # ONNX Runtime fuses the first Mul; it would compute wrong results with scales by rows in it.
        return with_bias(product, op.Mul(op.Mul(total, op.Mul(step, scale)), largest), op)

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        factors = self._smoothing(product.matrix)
        return simulation.product_of_columns(product, self.stored_scale(product, op), self.most, op, factors)

    def integers(self, product: Product, op: Builder) -> tuple[ir.Value, ir.Value]:
        """Return the weight in integers and the scales of its columns."""
        weight, scale = self.constants(product, op, self._tensors)
        return weight, scale

    def stored_scale(self, product: Product, op: Builder) -> ir.Value:
        """Return the constant with the scales."""
        return self.integers(product, op)[1]

    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        shape, most = (matrix.rows, matrix.columns), self.most
        matrix = smoothed(matrix, self._smoothing(matrix))
        return (
            weights.lazy(ir.DataType.INT8, shape, lambda: weights.signed_columns(matrix, most)),
            weights.lazy(ir.DataType.FLOAT, (matrix.columns,), lambda: weights.column_scales(matrix, most)),
        )

    def _smoothing(self, matrix: Matrix) -> Array | None:
        """Return the factors of an activation; they are computed once."""
        if matrix not in self._factors:
            self._factors[matrix] = smoothing(matrix)
        return self._factors[matrix]
