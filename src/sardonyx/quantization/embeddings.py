"""Gather(W, i) => Cast(Gather(q(W), i)) * Gather(scale, i), for the rows of a constant table W.

W becomes signed 8-bit integers with one scale for each row. Refuses a small table and one that is not float32. Helps
because the table takes a quarter of the bytes, and only the rows that are read are converted.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.recipe import Product, Recipe
from sardonyx.quantization.weights import Matrix


class QuantizeEmbeddings(Recipe):
    """Rows of a table in 8-bit integers."""

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
        return Product((node,), indices, table, Matrix(tensor, is_transposed=False), None)

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the lookup of integers and of their scales."""
        table, scale = self.constants(product, op, self._tensors)
        rows = op.Cast(op.Gather(table, product.activation, axis=0), to=ir.DataType.FLOAT)
        return op.Mul(rows, op.Gather(scale, product.activation, axis=0))

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same in float32."""
        _, scale = self.constants(product, op, self._tensors)
        return simulation.lookup_of_rows(product, scale, weights.SIGNED_MOST, op)

    def _tensors(self, matrix: Matrix) -> tuple[ir.TensorProtocol, ...]:
        table = Matrix(matrix.tensor, is_transposed=True)  # its columns are the rows of the table
        shape = (table.columns, table.rows)
        return (
            weights.lazy(ir.DataType.INT8, shape, lambda: weights.signed_columns(table).T),
            weights.lazy(ir.DataType.FLOAT, (table.columns, 1), lambda: weights.column_scales(table)[:, None]),
        )
