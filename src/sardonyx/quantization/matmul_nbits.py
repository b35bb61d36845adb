"""MatMul(x, W) => MatMulNBits(x, q(W), scale, zero), in blocks of rows of a constant W; Gemm with its bias likewise.

Integers of 8 bits are those of `quantize-weights`, stored as ONNX Runtime's own operator reads them; those of 4 bits
have no zero points, because the runtime then has faster kernels. x is rounded to 8-bit integers inside the kernel
(accuracy level 4). For the target `ort`. Refuses as the dynamic recipe does. Helps because the weight is not
dequantized in memory.
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

_INT8_ACTIVATIONS = 4  # the accuracy level


class QuantizeToMatMulNBits(BlockRecipe):
    """Weights in blocks, dequantized inside the product."""

    name = "quantize-to-matmul-nbits"
    targets = ("ort",)
    opset = 7
    needs = 11
    pads_rows = True
    symmetric_bits = 4

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build ONNX Runtime's own product."""
        matrix = product.matrix
        blocks = self.blocks(matrix)
        attributes = {
            "K": matrix.rows,
            "N": matrix.columns,
            "bits": self.bits,
            "block_size": blocks.size,
            "accuracy_level": _INT8_ACTIVATIONS,
        }
        inputs = (product.activation, *self.constants(product, op, self._tensors))
        (result,) = op.node("MatMulNBits", inputs, attributes, domain="com.microsoft")
        return with_bias(product, result, op)

    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        blocks, columns, bits = self.blocks(matrix), matrix.columns, self.bits
        packed, zeros = blocks.size * bits // 8, -(-blocks.count * bits // 8)
        integers, scales, centers = (
            weights.lazy(
                ir.DataType.UINT8,
                (columns, blocks.count, packed),
                lambda: _packed(blocks.integers().transpose(2, 0, 1), bits),
            ),
            weights.lazy(ir.DataType.FLOAT, (columns, blocks.count), lambda: blocks.scales().T),
            weights.lazy(ir.DataType.UINT8, (columns, zeros), lambda: _packed(blocks.zero_points().T, bits)),
        )
        return (integers, scales) if self.is_symmetric else (integers, scales, centers)

    def _read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        levels, scales, *zeros = (simulation.read(value) for value in stored)
        if self.bits == 4:
            levels = np.stack([levels % 16, levels // 16], -1)
        integers = levels.reshape(matrix.columns, -1)[:, : matrix.rows].T
        return integers, scales.T, zeros[0].T if zeros else np.full_like(scales.T, 1 << (self.bits - 1))


def _packed(values: Array, bits: int) -> Array:
    """Return integers along the last axis as bytes, the first in the lowest bits."""
    if bits == 8:
        return values
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], 1), np.uint8)], -1)
    return values[..., ::2] | (values[..., 1::2] << 4)
