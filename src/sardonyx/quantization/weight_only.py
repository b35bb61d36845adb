"""MatMul(x, W) => MatMul(x, DequantizeLinear(q(W), scale, zero)), in blocks of rows of a constant W; Gemm likewise.

W becomes unsigned integers of 4 or 8 bits with a scale and a zero point for each column of each block; x stays float32.
Needs opset 21. Refuses as the dynamic recipe does. Helps because the weight takes an eighth or a quarter of the bytes.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.recipe import Product, Recipe, Selection, matrix_product, with_bias
from sardonyx.quantization.weights import Blocks, Matrix

BLOCK = {4: 32, 8: 128}  # rows of a block by bits: scales and zero points take a fifth and a twenty-fifth more
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class BlockRecipe(Recipe):
    """A recipe for weights in blocks of rows."""

    roots = ("MatMul", "Gemm")

    def __init__(self, bits: int, selection: Selection | None = None, *, simulate: bool = False) -> None:
        """Store weights in integers of 4 or 8 bits."""
        super().__init__(selection, simulate=simulate)
        self.bits = bits

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with a constant weight."""
        return matrix_product(node, graph)

    def blocks(self, matrix: Matrix) -> Blocks:
        """Return the weight in blocks."""
        return Blocks(matrix, self.bits, BLOCK[self.bits])

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        return simulation.product_of_blocks(product, self.bits, BLOCK[self.bits], op)


class QuantizeWeights(BlockRecipe):
    """Weights in blocks, dequantized before the product."""

    name = "quantize-weights"
    opset = 9
    needs = 21  # the first with blocks and 4-bit integers

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the dequantized weight and the product."""
        weight = op.node(
            "DequantizeLinear",
            self.constants(product, op, self._tensors),
            {"axis": 0, "block_size": BLOCK[self.bits]},
        )[0]
        return with_bias(product, op.MatMul(product.activation, weight), op)

    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        blocks, columns = self.blocks(matrix), matrix.columns
        dtype, scaled = _TYPES[self.bits], (blocks.count, columns)
        return (
            weights.lazy(dtype, (matrix.rows, columns), lambda: blocks.integers().reshape(-1, columns)[: matrix.rows]),
            weights.lazy(ir.DataType.FLOAT, scaled, blocks.scales),
            weights.lazy(dtype, scaled, blocks.zero_points),
        )
