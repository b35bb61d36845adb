"""Transpose(W) => W', for a constant W; Reshape(W), Squeeze(W), Unsqueeze(W), Flatten(W) => the same bytes as W'.

Weights of any size: nothing is read until the result is written. Refuses where something else reads W as it is and
storing both would cost more than a budget (tied embeddings). Helps because exporters transpose every Linear weight at
run time, and no other pass sees through it.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._views import viewed_shape
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.layout.merge_transposes import permutation
from sardonyx.records.run import Accuracy

BUDGET = 1 << 20  # bytes a weight may have to be stored in two layouts
SMALL_VIEW = 1 << 12  # bytes of constants such as axes and scalars, which constant folding takes with all around them


class FoldWeightViews(NodePass):
    """Views and transposes of constants."""

    name = "fold-weight-views"
    accuracy = Accuracy.EXACT
    roots = ("Transpose", *sorted(VIEWS))
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
                t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 3] y)
            <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2, 3] t = {1, 3, 5, 2, 4, 6}> { y = MatMul(x, t) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x, float[3, 2] w = {1, 2, 3, 4, 5, 6}) => (float[N, 3] y) {
                t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)
            }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A view of a constant that nothing else needs, or that is small."""
        weight = node.inputs[0] if node.inputs else None
        tensor = graph.tensor(weight)
        if weight is None or tensor is None or tensor.dtype == ir.DataType.STRING:
            return None
        if node.op_type != "Transpose" and tensor.nbytes < SMALL_VIEW:
            return None
        twins = _twins(node, weight, graph)
        if tensor.nbytes > BUDGET and _read_by_others(weight, twins):
            return Refused("the weight is also read as it is, so folding would store it twice", (node,))
        found = _layout(node, tensor, graph)
        if found is None:
            return None
        return Match(twins, {"tensor": found, "count": len(twins)}, outputs=tuple(twin.outputs[0] for twin in twins))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One constant for all readers, made when it is written."""
        return [op.constant(match.found["tensor"], "weight")] * match.found["count"]


def _layout(node: ir.Node, tensor: ir.TensorProtocol, graph: Facts) -> ir.TensorProtocol | None:
    if node.op_type == "Transpose":
        perm = permutation(node, graph) or tuple(range(len(tensor.shape)))[::-1]
        return transposed(tensor, perm)
    shape = viewed_shape(node, tuple(int(dim) for dim in tensor.shape.numpy()), graph)
    return None if shape is None else reshaped(tensor, shape)


def _twins(node: ir.Node, weight: ir.Value, graph: Facts) -> tuple[ir.Node, ...]:
    """The node and those that do the very same to the same weight beside it, the node last.

    Functions hold constants as nodes, which come after what is before them, so there each is on its own.
    """
    if node.op_type != "Transpose" or graph.scope(node).in_function:
        return (node,)
    same = [
        user
        for user in weight.consumers()
        if user is not node
        and (user.op_type, user.domain, user.graph) == ("Transpose", "", node.graph)
        and permutation(user, graph) == permutation(node, graph)
        and not user.outputs[0].is_graph_output()
    ]
    return (*same, node)


def _read_by_others(weight: ir.Value, readers: tuple[ir.Node, ...]) -> bool:
    return weight.is_graph_output() or any(user not in readers for user in weight.consumers())
