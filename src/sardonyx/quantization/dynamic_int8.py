"""MatMul(x, W) => MatMulInteger(q(x), q(W)) * (scale(x) * scale(W)), for a constant W; Gemm with its bias likewise.

W becomes signed 8-bit integers with one scale for each column; x is quantized at run time to unsigned 8-bit integers
with the range of the whole tensor. Refuses a small weight, one that is not float32, and a product inside a body. Helps
because 8-bit products are faster on most CPUs, and the weight takes a quarter of the bytes.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.recipe import Product, Recipe, matrix_product, with_bias
from sardonyx.quantization.weights import Matrix


class QuantizeDynamically(Recipe):
    """Products in 8-bit integers, with activations quantized at run time."""

    name = "quantize-dynamically"
    roots = ("MatMul", "Gemm")
    opset = 11  # the first with DynamicQuantizeLinear
    needs = 11

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with a constant weight."""
        return matrix_product(node, graph)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the product in integers, scaled to float32."""
        weight, scale = self.constants(product, op, _constants)
        levels, step, zero = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
        total = op.Cast(op.MatMulInteger(levels, weight, zero), to=ir.DataType.FLOAT)
        return with_bias(product, op.Mul(total, op.Mul(step, scale)), op)

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        return simulation.product_of_columns(product, op)


def _constants(matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
    shape = (matrix.rows, matrix.columns)
    return (
        weights.lazy(ir.DataType.INT8, shape, lambda: weights.signed_columns(matrix)),
        ir.Tensor(weights.column_scales(matrix)),
    )
