"""Weights in integers, activations in float32: DequantizeLinear, plain arithmetic, or MatMulNBits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder
from sardonyx.verbs.quantize import simulation, weights
from sardonyx.verbs.quantize.recipe import Product, Recipe, in_body, with_bias
from sardonyx.verbs.quantize.weights import Blocks, Matrix

SIZES = (16, 32, 64, 128)  # of blocks of rows
_PLAIN = 32  # the largest block of 4-bit integers that do not compensate for each other's errors
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class BlockRecipe(Recipe):
    """A recipe for weights in blocks of rows."""

    is_fusible = True
    compensates = True
    pads_rows = False  # whether the last block is stored with rows that pad it
    symmetric_bits: int | None = None  # integers of so many bits have no zero points: the middle one stands for 0

    def __init__(self, bits: int, *args: Any, **options: Any) -> None:
        """Store weights in integers of 4 or 8 bits."""
        super().__init__(*args, **options)
        self.bits = bits
        self.is_symmetric = bits == self.symmetric_bits
        self.name = f"{type(self).name}-{bits}"  # a model may have weights of both

    def blocks(self, matrix: Matrix) -> Blocks:
        """Return the weight in blocks."""
        return Blocks(matrix, self.bits, self.block_size(matrix), self.is_symmetric)

    def block_size(self, matrix: Matrix) -> int:
        """Return the size of blocks that takes the fewest bits."""
        rows, bits = matrix.rows, self.bits

        def stored(size: int) -> int:
            count = -(-rows // size)
            scale = 32 if self.is_symmetric else 32 + bits
            return bits * (count * size if self.pads_rows else rows) + count * scale

        return min((size for size in SIZES if size <= _PLAIN or bits == 8 or matrix.moments is not None), key=stored)

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the product with the weight that the integers stand for.

        If the runtime may round activations to 8-bit integers, also with those: in blocks, or in rows.
        """
        weight = self.simulated_weight(product, stored, op)
        exact = with_bias(product, op.MatMul(product.activation, weight), op)
        if not self.is_fusible:
            return (exact,)
        rows, size = product.matrix.rows, self.blocks(product.matrix).size
        activations = [
            simulation.activation_in_blocks(product.activation, rows, size, op, divides_once=each)
            for each in (False, True)
        ]
        if self.is_symmetric:  # some CPUs have kernels for these alone
            activations.append(simulation.activation_in_rows(product.activation, rows, op))
        lead = op.Slice(op.Shape(product.activation), *(op.constant(np.array([end])) for end in (0, -1)))
        shape = op.Concat(lead, op.constant(np.array([product.matrix.columns])), axis=0)
        totals = (op.Reshape(op.MatMul(activation, weight), shape) for activation in activations)
        return exact, *(with_bias(product, total, op) for total in totals)

    def simulated_weight(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Return the weight that the stored integers stand for; products that share a weight share it."""
        matrix, key = product.matrix, (product.weight, product.matrix.is_transposed, *in_body(op))

        def held() -> Array:
            return simulation.held_in_blocks(self.blocks(matrix), *self.read(matrix, stored))

        (weight,) = self.shared(("simulated", *key), lambda: [op.constant(weights.simulated(matrix.shape, held))])
        return weight

    def read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        """Return the stored integers as rows × columns, and scales and zero points as blocks × columns."""
        integers, scales, zeros = (simulation.read(value).reshape(-1, matrix.columns) for value in stored)
        return integers[: matrix.rows], scales, zeros


class QuantizeWeights(BlockRecipe):
    """MatMul(x, W) => MatMul(x, DequantizeLinear(q(W), scale, zero)), in blocks of rows of a constant W; Gemm likewise.

    W becomes unsigned integers of 4 or 8 bits with a scale and a zero point for each column of each block; x stays
    float32. With samples of x, the rounding errors of W compensate each other, and blocks of 4-bit integers are larger.
    ONNX Runtime fuses both to MatMulNBits and rounds x to 8-bit integers in blocks, which is faster; both are
    simulated. Needs opset 21. Refuses as the dynamic recipe does. Helps because the weight takes an eighth or a quarter
    of the bytes.
    """

    name = "quantize-weights"
    opset = 7
    needs = 21  # the first with blocks and 4-bit integers

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return integers, scales and zero points as DequantizeLinear reads them."""
        blocks, (rows, columns) = self.blocks(product.matrix), product.matrix.shape
        dtype, scaled = _TYPES[self.bits], (blocks.count, columns)
        return (
            weights.lazy(dtype, (rows, columns), lambda: blocks.integers().reshape(-1, columns)[:rows]),
            weights.lazy(ir.DataType.FLOAT, scaled, blocks.scales),
            weights.lazy(dtype, scaled, blocks.zero_points),
        )

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the dequantized weight and the product."""
        attributes = {"axis": 0, "block_size": self.blocks(product.matrix).size}
        weight = op.node("DequantizeLinear", tuple(stored), attributes)[0]
        return with_bias(product, op.MatMul(product.activation, weight), op)


class QuantizeStoredWeights(BlockRecipe):
    """MatMul(x, W) => MatMul(x, (Cast(q(W)) - zero) * scale), in blocks of rows of a constant W; Gemm likewise.

    W becomes unsigned 8-bit integers with a scale and a zero point for each column of each block; x stays float32. ONNX
    Runtime computes the float32 weight once, when it loads the file: it takes the memory and the time of the source. It
    would fuse DequantizeLinear to a product that rounds x as well. Refuses as the dynamic recipe does. Helps because
    the file takes a quarter of the bytes.
    """

    name = "quantize-stored-weights"
    opset = 7
    needs = 11
    is_fusible = False
    pads_rows = True

    def block_size(self, matrix: Matrix) -> int:
        """Return all rows if rounding errors compensate each other: smaller blocks take more bytes and lose as much."""
        return super().block_size(matrix) if matrix.moments is None else matrix.rows

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return integers, scales and zero points by block, unless there is one."""
        blocks, columns = self.blocks(product.matrix), product.matrix.columns
        count = () if blocks.count == 1 else (blocks.count,)
        shape, scaled = (*count, blocks.size, columns), (*count, 1, columns)
        return (
            weights.lazy(ir.DataType.UINT8, shape, lambda: blocks.integers().reshape(shape)),
            weights.lazy(ir.DataType.FLOAT, scaled, lambda: blocks.scales().reshape(scaled)),
            weights.lazy(ir.DataType.UINT8, scaled, lambda: blocks.zero_points().reshape(scaled)),
        )

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the float32 weight and the product."""
        matrix, blocks, (levels, scale, zero) = product.matrix, self.blocks(product.matrix), stored
        weight = op.Mul(op.Sub(op.Cast(levels, to=ir.DataType.FLOAT), op.Cast(zero, to=ir.DataType.FLOAT)), scale)
        if blocks.count > 1:
            weight = op.Reshape(weight, op.constant(np.array([-1, matrix.columns])))
        if blocks.count * blocks.size > matrix.rows:
            weight = op.Slice(weight, *(op.constant(np.array([end])) for end in (0, matrix.rows)))
        return with_bias(product, op.MatMul(product.activation, weight), op)


_INT8_ACTIVATIONS = 4  # the accuracy level


class QuantizeToMatMulNBits(BlockRecipe):
    """MatMul(x, W) => MatMulNBits(x, q(W), scale, zero), in blocks of rows of a constant W; Gemm likewise.

    Integers of 8 bits are those of `quantize-weights`, stored as ONNX Runtime's own operator reads them; those of 4
    bits have no zero points, because the runtime then has faster kernels. x is rounded to 8-bit integers inside the
    kernel (accuracy level 4). For the target `ort`. Refuses as the dynamic recipe does. Helps because the weight is not
    dequantized in memory.
    """

    name = "quantize-to-matmul-nbits"
    targets = ("ort",)
    opset = 7
    needs = 11
    pads_rows = True
    symmetric_bits = 4

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return integers, scales and zero points by column, as bytes."""
        blocks, columns, bits = self.blocks(product.matrix), product.matrix.columns, self.bits
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

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build ONNX Runtime's own product."""
        rows, columns = product.matrix.shape
        attributes = {"K": rows, "N": columns, "bits": self.bits, "block_size": self.blocks(product.matrix).size}
        attributes |= {"accuracy_level": _INT8_ACTIVATIONS}
        inputs = (product.activation, *stored)
        return with_bias(product, op.node("MatMulNBits", inputs, attributes, domain="com.microsoft")[0], op)

    def read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        """Return the stored integers as rows × columns, and scales and zero points as blocks × columns."""
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
