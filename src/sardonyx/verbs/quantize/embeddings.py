"""Tables of embeddings in integers, alone or shared with the head of a language model."""

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
from sardonyx.verbs.quantize.dynamic_int8 import QuantizeDynamically
from sardonyx.verbs.quantize.recipe import Product, Recipe
from sardonyx.verbs.quantize.weight_only import QuantizeToMatMulNBits
from sardonyx.verbs.quantize.weights import Matrix, saturates


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


class QuantizeTiedHead(QuantizeDynamically):
    """MatMul(x, Transpose(W)) => the product of `quantize-dynamically` with Transpose(q(W)), for an embedding table W.

    The columns of the product are the rows of the table, so that the integers and scales of `quantize-embeddings` serve
    both. Refuses a table that was not quantized, and a CPU that adds 8-bit products with saturation. Helps because the
    largest tensor of many language models is stored once.
    """

    name = "quantize-tied-head"

    def __init__(self, tables: QuantizeEmbeddings, *args: Any, **options: Any) -> None:
        """Use the integers that `tables` has stored."""
        super().__init__(*args, **options)
        self._tables = tables
        self.most = weights.SIGNED_MOST

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with the transpose of a quantized table."""
        found = super().find(node, graph)
        is_tied = isinstance(found, Product) and found.matrix.is_transposed and self._tables.stored(found.weight)
        return found if is_tied and not saturates() else None

    def constants(self, product: Product, op: Builder) -> Sequence[ir.Value]:
        """Return the table and the scales of its rows."""
        del op
        return self._tables.stored(product.weight)

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the product with views of both."""
        return super().quantized(product, [op.Transpose(each, perm=[1, 0]) for each in stored], op)


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
