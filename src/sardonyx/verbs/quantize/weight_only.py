"""Weights in integers, activations in float32: products, filters of convolutions, and tables of embeddings.

Products have DequantizeLinear, plain arithmetic, or MatMulNBits. Tables are stored alone, or shared with the head of a
language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import structs

from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.verbs.quantize import simulation, weights
from sardonyx.verbs.quantize.recipe import Product, Recipe, convolution, in_body, with_bias
from sardonyx.verbs.quantize.weights import Blocks, Matrix

BLOCK_SIZES = (16, 32, 64, 128)  # of blocks of rows
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

        return min(
            (size for size in BLOCK_SIZES if size <= _PLAIN or bits == 8 or matrix.moments is not None), key=stored
        )

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


class QuantizeEmbeddings(Recipe):
    """Gather(W, i) => Cast(Gather(q(W), i)) * Gather(scale, i), for the rows of a constant table W.

    W becomes signed 8-bit integers with one scale for each row. Refuses a small table and one that is not float32.
    Helps because the table takes a quarter of the bytes, and only the rows that are read are converted.
    """

    name = "quantize-embeddings"
    roots = ("Gather",)

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a lookup of rows in a constant table."""
        table, indices = operand(node, 0), operand(node, 1)
        tensor = graph.tensor(table)
        if table is None or indices is None or tensor is None or not tensor.dtype.is_floating_point():
            return None
        if len(tensor.shape) != 2 or node.attributes.get_int("axis", 0) != 0:
            return Refused("it does not read rows of a matrix", (node,))
        return Product((node,), indices, table, Matrix(tensor, is_transposed=False))

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return the integers of a table, and the scales of its rows."""
        table = Matrix(product.matrix.tensor, is_transposed=True)  # its columns are the rows of the table
        return (
            weights.lazy(ir.DataType.INT8, table.shape[::-1], lambda: weights.signed_columns(table).T),
            weights.lazy(ir.DataType.FLOAT, (table.columns, 1), lambda: weights.column_scales(table)[:, None]),
        )

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the lookup of integers and of their scales."""
        table, scale = stored
        rows = op.Cast(op.Gather(table, product.activation, axis=0), to=ir.DataType.FLOAT)
        return op.Mul(rows, op.Gather(scale, product.activation, axis=0))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the lookup in the rounded table."""
        tensor, scales = product.matrix.tensor, stored[1]

        def table() -> Array:
            return simulation.nearest_signed(tensor.numpy(), 0, simulation.read(scales).ravel(), weights.SIGNED_MOST)

        rounded = op.constant(weights.simulated(product.matrix.shape, table))
        return (op.Gather(rounded, product.activation, axis=0),)


class QuantizeSharedTables(QuantizeEmbeddings):
    """Gather(W, i) => GatherBlockQuantized(q(W), i, scale), for a table W that is the weight of a MatMulNBits as well.

    The rows of the table are the columns of the product, so that the same 4-bit integers and scales serve both. For the
    target `ort`. Refuses a table that no quantized product reads. Helps because the largest tensor of many language
    models is stored once, in an eighth of the bytes.
    """

    name = "quantize-shared-tables"
    targets = ("ort",)

    def __init__(self, products: QuantizeToMatMulNBits, *args: Any, **options: Any) -> None:
        """Use the integers that `products` has stored."""
        super().__init__(*args, **options)
        self._products = products

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a lookup in a table that a quantized product reads transposed."""
        found = super().find(node, graph)
        if not isinstance(found, Product) or not self._products.stored(found.weight, is_transposed=True):
            return None
        return structs.replace(found, matrix=Matrix(found.matrix.tensor, is_transposed=True))

    def constants(self, product: Product, op: Builder) -> Sequence[ir.Value]:
        """Return the constants of the product."""
        del op
        return self._products.stored(product.weight, is_transposed=True)

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the lookup of integers, which are scaled to float32."""
        (integers, scales), rows, bits = stored, product.matrix.rows, self._products.bits
        assert integers.const_value is not None
        columns, count, packed = integers.const_value.shape.numpy()
        size = packed * 8 // bits
        table = op.Reshape(integers, op.constant(np.array([columns, count * packed])))
        attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        inputs = (table, product.activation, scales)
        (found,) = op.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft")
        if count * size == rows:
            return found
        return op.Slice(found, *(op.constant(np.array([number])) for number in (0, rows, -1)))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the lookup in the weight of the product's simulation."""
        weight = self._products.simulated_weight(product, stored, op)
        return (op.Gather(op.Transpose(weight, perm=[1, 0]), product.activation, axis=0),)


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
        return integers, ir.Tensor(scales.reshape(self.by_channel(product)))

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the float32 filters and the convolution."""
        levels, scale = stored
        filters = op.Mul(op.Cast(levels, to=ir.DataType.FLOAT), scale)
        return op.like(product.nodes[-1], (product.activation, filters, product.bias))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the same in float32."""
        return (self.rounded(product, product.activation, stored, op),)

    def by_channel(self, product: Product) -> tuple[int, ...]:
        """Return the shape of numbers of the outputs."""
        return tuple(-1 if axis == self.channels else 1 for axis in range(len(product.filters)))

    def rounded(self, product: Product, activation: ir.Value, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the convolution with rounded filters."""
        tensor, scales = product.matrix.tensor, stored[1]

        def filters() -> Array:
            nearest = simulation.nearest_signed(tensor.numpy(), 0, simulation.read(scales).ravel(), self.most)
            return nearest.reshape(product.filters)

        rounded = op.constant(weights.simulated(product.filters, filters))
        return op.like(product.nodes[-1], (activation, rounded, product.bias))
