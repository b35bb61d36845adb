"""MatMul(x, W) => MatMul(x, (Cast(q(W)) - zero) * scale), in blocks of rows of a constant W; Gemm likewise.

W becomes unsigned 8-bit integers with a scale and a zero point for each column of each block; x stays float32. ONNX
Runtime computes the float32 weight once, when it loads the file: it takes the memory and the time of the source. It
would fuse DequantizeLinear to a product that rounds x as well. Refuses as the dynamic recipe does. Helps because the
file takes a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.recipe import Product, with_bias
from sardonyx.quantization.weight_only import BlockRecipe
from sardonyx.quantization.weights import Matrix


class QuantizeStoredWeights(BlockRecipe):
    """Weights in integers, which become float32 when the file is loaded."""

    name = "quantize-stored-weights"
    opset = 7
    needs = 11
    is_fusible = False
    pads_rows = True

    def block_size(self, matrix: Matrix) -> int:
        """Return all rows if rounding errors compensate each other: smaller blocks take more bytes and lose as much."""
        return super().block_size(matrix) if matrix.moments is None else matrix.rows

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the float32 weight and the product."""
        matrix, (levels, scale, zero) = product.matrix, self.constants(product, op, self._tensors)
        blocks = self.blocks(matrix)
        weight = op.Mul(op.Sub(op.Cast(levels, to=ir.DataType.FLOAT), op.Cast(zero, to=ir.DataType.FLOAT)), scale)
        if blocks.count > 1:
            weight = op.Reshape(weight, op.constant(np.array([-1, matrix.columns])))
        if blocks.count * blocks.size > matrix.rows:
            weight = op.Slice(weight, *(op.constant(np.array([end])) for end in (0, matrix.rows)))
        return with_bias(product, op.MatMul(product.activation, weight), op)

    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        blocks, columns = self.blocks(matrix), matrix.columns
        count = () if blocks.count == 1 else (blocks.count,)
        shape, scaled = (*count, blocks.size, columns), (*count, 1, columns)
        return (
            weights.lazy(ir.DataType.UINT8, shape, lambda: blocks.integers().reshape(shape)),
            weights.lazy(ir.DataType.FLOAT, scaled, lambda: blocks.scales().reshape(scaled)),
            weights.lazy(ir.DataType.UINT8, scaled, lambda: blocks.zero_points().reshape(scaled)),
        )

    def _read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        integers, scales, zeros = (simulation.read(value).reshape(-1, matrix.columns) for value in stored)
        return integers[: matrix.rows], scales, zeros
