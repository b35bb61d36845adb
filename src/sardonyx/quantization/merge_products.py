"""MatMul(x, V), MatMul(x, W) => Split(MatMul(x, [V W])), for constant matrices V and W that nothing else reads.

For products that get the same recipe, before it runs: their columns do not depend on each other. Refuses products of
modules that are not selected, and weights that are too small to be quantized. Helps because x is rounded once, and
because a kernel with few rows takes much of its time to start.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import ConcatTensor
from sardonyx.passes._parts import split_into
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, NodePass, Replacement
from sardonyx.quantization.recipe import Selection, is_large
from sardonyx.quantization.weights import DerivedTensor

_MOST = 16  # products of one activation that are considered


class MergeProducts(NodePass):
    """Products of one activation with several weights."""

    name = "merge-products"
    accuracy = Accuracy.REASSOCIATES
    roots = ("MatMul",)

    def __init__(self, selection: Selection) -> None:
        """Merge products of the selected modules."""
        self._selection = selection

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        """Match all products of the activation of a product."""
        source = operand(node, 0)
        if source is None or self._weight(node, graph) is None or len(source.uses()) > _MOST:
            return None
        readers = dict.fromkeys(use.node for use in source.uses() if use.idx == 0 and use.node.graph is node.graph)
        products = [reader for reader in readers if self._weight(reader, graph) is not None]
        if len(products) < 2:
            return None
        first = graph.first(products)
        nodes = (*(product for product in products if product is not first), first)
        tensors = [tensor for product in products if (tensor := self._weight(product, graph)) is not None]
        return Match(nodes, {"tensors": tensors}, tuple(product.outputs[0] for product in products))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build one product and split its result."""
        source, tensors = match.root.inputs[0], match.details["tensors"]
        assert source is not None
        result = op.MatMul(source, op.constant(ConcatTensor(tensors), "weight"))
        return split_into(result, -1, [tensor.shape.numpy()[1] for tensor in tensors], op)

    def _weight(self, node: ir.Node, graph: Facts) -> ir.TensorProtocol | None:
        """Return the weight of a product that may be merged."""
        weight = operand(node, 1)
        tensor = graph.tensor(weight)
        if node.op_type != "MatMul" or node.domain or weight is None or tensor is None or len(tensor.shape) != 2:
            return None
        is_merged = isinstance(tensor, (ConcatTensor, DerivedTensor))
        if is_merged or tensor.dtype is not ir.DataType.FLOAT or not is_large(tensor):
            return None
        scope = graph.scope(node)
        is_free = scope.holder is None and not scope.in_function and graph.sole_consumer(weight) is node
        return tensor if is_free and self._selection.includes(node) else None
