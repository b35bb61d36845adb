"""MatMul(x, W) => MatMul(x, DequantizeLinear(q(W), scale, zero)), in blocks of rows of a constant W; Gemm likewise.

W becomes unsigned integers of 4 or 8 bits with a scale and a zero point for each column of each block; x stays float32.
With samples of x, the rounding errors of W compensate each other, and blocks of 4-bit integers are larger.
ONNX Runtime fuses both to MatMulNBits and rounds x to 8-bit integers in blocks, which is faster; both are simulated.
Needs opset 21. Refuses as the dynamic recipe does. Helps because the weight takes an eighth or a quarter of the bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.error_compensation import Moments
from sardonyx.quantization.recipe import PRODUCTS, Product, Recipe, Selection, matrix_product, with_bias
from sardonyx.quantization.weights import Blocks, Matrix

SIZES = (16, 32, 64, 128)  # of blocks of rows
_PLAIN = 32  # the largest block of 4-bit integers that do not compensate for each other's errors
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class BlockRecipe(Recipe):
    """A recipe for weights in blocks of rows."""

    roots = PRODUCTS
    is_fusible = True
    compensates = True
    pads_rows = False  # whether the last block is stored with rows that pad it
    symmetric_bits: int | None = None  # integers of so many bits have no zero points: the middle one stands for 0

    def __init__(
        self,
        bits: int,
        selection: Selection | None = None,
        *,
        simulate: bool = False,
        moments: Mapping[str, Moments] | None = None,
    ) -> None:
        """Store weights in integers of 4 or 8 bits."""
        super().__init__(selection, simulate=simulate, moments=moments)
        self.bits = bits
        self.is_symmetric = bits == self.symmetric_bits
        self.name = f"{type(self).name}-{bits}"  # a model may have weights of both
        self._simulated_weights: dict[tuple[ir.Value, bool], ir.Value] = {}

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with a constant weight."""
        return matrix_product(node, graph)

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

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the product with the weight that the integers stand for."""
        weight = self.simulated_weight(product, op)
        return with_bias(product, op.MatMul(product.activation, weight), op)

    def rounded_simulations(self, product: Product, op: Builder) -> tuple[ir.Value, ...]:
        """Build the same with activations in 8-bit integers, if the runtime may round them: in blocks, or in rows."""
        if not self.is_fusible:
            return ()
        rows, size = product.matrix.rows, self.blocks(product.matrix).size
        activations = [
            simulation.activation_in_blocks(product.activation, rows, size, op, divides_once=each)
            for each in (False, True)
        ]
        if self.is_symmetric:  # some CPUs have kernels for these alone
            activations.append(simulation.activation_in_rows(product.activation, rows, op))
        lead = op.Slice(op.Shape(product.activation), *(op.constant(np.array([end])) for end in (0, -1)))
        shape = op.Concat(lead, op.constant(np.array([product.matrix.columns])), axis=0)
        totals = [op.MatMul(activation, self.simulated_weight(product, op)) for activation in activations]
        return tuple(with_bias(product, op.Reshape(total, shape), op) for total in totals)

    def simulated_weight(self, product: Product, op: Builder) -> ir.Value:
        """Return the weight that the stored integers stand for; products that share a weight share it."""
        key = (product.weight, product.matrix.is_transposed)
        if key not in self._simulated_weights:
            matrix = product.matrix
            stored = self.constants(product, op, self._tensors)
            weight = weights.simulated(
                (matrix.rows, matrix.columns),
                lambda: self._simulated(matrix, *self._read(matrix, stored)),
            )
            self._simulated_weights[key] = op.constant(weight)
        return self._simulated_weights[key]

    def _simulated(self, matrix: Matrix, integers: Array, scales: Array, zeros: Array) -> Array:
        size = self.blocks(matrix).size
        if matrix.moments is None:
            return simulation.nearest_in_blocks(matrix, self.bits, size, scales, zeros, is_symmetric=self.is_symmetric)
        moments = matrix.moments.array()
        return simulation.compensated_in_blocks(
            matrix, moments, self.bits, size, integers, scales, zeros, is_symmetric=self.is_symmetric
        )

    @abstractmethod
    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        """Return integers, scales and zero points as the operator reads them."""

    @abstractmethod
    def _read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        """Return the stored integers as rows × columns, and scales and zero points as blocks × columns."""


class QuantizeWeights(BlockRecipe):
    """Weights in blocks, dequantized before the product."""

    name = "quantize-weights"
    opset = 7
    needs = 21  # the first with blocks and 4-bit integers

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the dequantized weight and the product."""
        weight = op.node(
            "DequantizeLinear",
            self.constants(product, op, self._tensors),
            {"axis": 0, "block_size": self.blocks(product.matrix).size},
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

    def _read(self, matrix: Matrix, stored: Sequence[ir.Value]) -> tuple[Array, Array, Array]:
        del matrix
        integers, scales, zeros = (simulation.read(value) for value in stored)
        return integers, scales, zeros
