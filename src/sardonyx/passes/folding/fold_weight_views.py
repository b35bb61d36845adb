"""Transpose(W) => W', for a constant W; Reshape(W), Squeeze(W), Unsqueeze(W), Flatten(W) => the same bytes as W'.

For weights of any size; nothing is read until the result is written. Refuses if W is also read in its original layout
and storing both would exceed a budget (tied embeddings). Helps because exporters transpose every Linear weight at run
time, and no other pass looks through the transpose.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import is_used_outside, operand
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._matching import permutation
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, require, required

MAX_STORED_TWICE_BYTES = 1 << 20  # larger weights are not stored in two layouts
SMALL_VIEW_BYTES = 1 << 12  # smaller constants, such as axes and scalars, are left to constant folding


class FoldWeightViews(NodePass):
    """Views and transposes of constants."""

    accuracy = Accuracy.EXACT
    roots = ("Transpose", *sorted(VIEWS))
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 3] y)
            <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }
        """,
        after="<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2, 3] t = {1, 3, 5, 2, 4, 6}> { y = MatMul(x, t) }",
        near_miss="""
            (float[N, 2] x, float[3, 2] w = {1, 2, 3, 4, 5, 6}) => (float[N, 3] y)
            { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        weight = required(operand(node, 0))
        tensor = required(graph.tensor(weight))
        require(
            tensor.dtype != ir.DataType.STRING and (node.op_type == "Transpose" or tensor.nbytes >= SMALL_VIEW_BYTES)
        )
        duplicates = _duplicates(node, weight, graph)
        is_own = tensor.nbytes <= MAX_STORED_TWICE_BYTES or not is_used_outside(weight, duplicates)
        require(is_own, "the weight is also read in its original layout, so folding would store it twice")
        if node.op_type == "Transpose":
            perm = permutation(node, graph) or tuple(range(len(tensor.shape)))[::-1]
            require(len(perm) == len(tensor.shape))
            folded = transposed(tensor, perm)
        else:
            shape = required(graph.static_shape(node.outputs[0]))
            require(math.prod(shape) == tensor.size)
            folded = reshaped(tensor, shape)
        outputs = tuple(duplicate.outputs[0] for duplicate in duplicates)
        return Match(duplicates, outputs=outputs, build=lambda op: [op.constant(folded, "weight")] * len(duplicates))


def _duplicates(node: ir.Node, weight: ir.Value, graph: Facts) -> tuple[ir.Node, ...]:
    """Return the nodes of the same graph that transpose the weight in the same way, this node last.

    In functions constants are nodes, which would have to come before all of their consumers, so there each node is
    separate.
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
