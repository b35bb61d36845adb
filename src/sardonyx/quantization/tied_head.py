"""MatMul(x, Transpose(W)) => the product of `quantize-dynamically` with Transpose(q(W)), for a table W of embeddings.

The columns of the product are the rows of the table, so that the integers and scales of `quantize-embeddings` serve
both. Refuses a table that was not quantized, and a CPU that adds 8-bit products with saturation. Helps because the
largest tensor of many language models is stored once.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.quantization import weights
from sardonyx.quantization.dynamic_int8 import QuantizeDynamically
from sardonyx.quantization.embeddings import QuantizeEmbeddings
from sardonyx.quantization.recipe import Product, Selection
from sardonyx.quantization.saturation import saturates


class QuantizeTiedHead(QuantizeDynamically):
    """Products with a table that lookups read too."""

    name = "quantize-tied-head"

    def __init__(
        self, tables: QuantizeEmbeddings, selection: Selection | None = None, *, simulate: bool = False
    ) -> None:
        """Use the integers that `tables` has stored."""
        super().__init__(selection, simulate=simulate)
        self._tables = tables
        self.most = weights.SIGNED_MOST

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with the transpose of a quantized table."""
        found = super().find(node, graph)
        is_tied = isinstance(found, Product) and found.matrix.is_transposed and self._tables.stored(found.weight)
        return found if is_tied and not saturates() else None

    def integers(self, product: Product, op: Builder) -> tuple[ir.Value, ir.Value]:
        """Return views of the table and its scales."""
        table, scale = self._tables.stored(product.weight)
        return op.Transpose(table, perm=[1, 0]), op.Transpose(scale, perm=[1, 0])

    def stored_scale(self, product: Product, op: Builder) -> ir.Value:
        """Return the scales of the rows of the table."""
        del op
        return self._tables.stored(product.weight)[1]
