"""Gather(W, i) => GatherBlockQuantized(q(W), i, scale), for a table W that is the weight of a MatMulNBits as well.

The rows of the table are the columns of the product, so that the same 4-bit integers and scales serve both. For the
target `ort`. Refuses a table that no quantized product reads. Helps because the largest tensor of many language models
is stored once, in an eighth of the bytes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import structs

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization.embeddings import QuantizeEmbeddings
from sardonyx.quantization.matmul_nbits import QuantizeToMatMulNBits
from sardonyx.quantization.recipe import Product, Selection
from sardonyx.quantization.weights import Matrix


class QuantizeSharedTables(QuantizeEmbeddings):
    """Lookups in a table that is the weight of a product."""

    name = "quantize-shared-tables"
    targets = ("ort",)

    def __init__(
        self, products: QuantizeToMatMulNBits, selection: Selection | None = None, *, simulate: bool = False
    ) -> None:
        """Use the integers that `products` has stored."""
        super().__init__(selection, simulate=simulate)
        self._products = products

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a lookup in a table that a quantized product reads transposed."""
        found = super().find(node, graph)
        if not isinstance(found, Product) or not self._products.stored(found.weight, is_transposed=True):
            return None
        return structs.replace(found, matrix=Matrix(found.matrix.tensor, is_transposed=True))

    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the lookup of integers, which are scaled to float32."""
        rows, bits = product.matrix.rows, self._products.bits
        integers, scales = self._products.stored(product.weight, is_transposed=True)
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

    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the lookup in the weight of the product's simulation."""
        weight = self._products.simulated_weight(product, op)
        return op.Gather(op.Transpose(weight, perm=[1, 0]), product.activation, axis=0)
