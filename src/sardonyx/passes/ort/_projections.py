"""Queries, keys and values read as projections x * W + b of the states they come from, so that they can be packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.tensors import JoinedTensor
from sardonyx.passes._matching import operand
from sardonyx.passes.ort._contrib import biased

SHARED_WEIGHT = "a projection's weight is read elsewhere too, so that packing would store it twice"
NO_CONSTANT = "a projection's weight or bias is not a constant"
READ_ELSEWHERE = "a projection is read elsewhere"


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """x * W + b with a constant matrix and, where there is one, a constant vector."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    width: int
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Projections of one source side by side; `widths` of queries, keys and values."""

    source: ir.Value
    parts: tuple[Projection, ...]
    widths: tuple[int, ...]
    nodes: tuple[ir.Node, ...]

    def weight(self, op: Builder, graph: Facts) -> ir.Value:
        """One matrix for all of them, joined when it is written."""
        if len(self.parts) == 1:
            return self.parts[0].weight
        return op.constant(JoinedTensor([_tensor(part.weight, graph) for part in self.parts]), "weight")

    def bias(self, op: Builder, graph: Facts) -> ir.Value:
        """One vector for all of them, zero where a projection has none."""
        only = self.parts[0].bias if len(self.parts) == 1 else None
        if only is not None and graph.rank(only) == 1:
            return only
        pieces = [
            np.zeros(part.width, np.float32) if part.bias is None else _tensor(part.bias, graph).numpy().reshape(-1)
            for part in self.parts
        ]
        return op.constant(np.concatenate(pieces), "bias")


def packed(values: Sequence[ir.Value], user: ir.Node | Sequence[ir.Node], graph: Facts) -> Packed | str | None:
    """The values as projections of one source, in order; why they cannot be packed, or None for something else.

    `user` is the node that alone reads them, or one for each.
    """
    users = [user] * len(values) if isinstance(user, ir.Node) else user
    split = _split(values, users, graph)
    if split is not None:
        node, widths = split
        whole = projection(node.inputs[0], node, graph)
        if whole is None or isinstance(whole, str):
            return whole
        return Packed(whole.source, (whole,), widths, (*whole.nodes, node))
    parts: list[Projection] = []
    for value, reader in zip(values, users, strict=True):
        part = projection(value, reader, graph)
        if part is None or isinstance(part, str):
            return part
        parts.append(part)
    if any(part.source is not parts[0].source for part in parts):
        return "queries, keys and values are projections of different states"
    if any(graph.sole_user(part.weight) is None for part in parts):
        return SHARED_WEIGHT
    nodes = tuple(node for part in parts for node in part.nodes)
    return Packed(parts[0].source, tuple(parts), tuple(part.width for part in parts), nodes)


def projection(value: ir.Value | None, user: ir.Node, graph: Facts) -> Projection | str | None:
    """A value as the product with a matrix, plus a vector maybe; why it cannot be used, or None."""
    if value is None:
        return None
    added = biased(value, user, graph)
    product = value if added is None else added.source
    reader = user if added is None else added.node
    node = product.producer()
    if node is None or node.graph is not user.graph or (node.domain, node.op_type) != ("", "MatMul"):
        return None
    if graph.sole_user(product) is not reader:
        return READ_ELSEWHERE
    source, weight = node.inputs
    shape = graph.static_shape(weight)
    if source is None or weight is None or shape is None or len(shape) != 2 or graph.rank(source) != 3:
        return None
    bias = None if added is None else added.bias
    if graph.tensor(weight) is None or (bias is not None and graph.tensor(bias) is None):
        return NO_CONSTANT
    return Projection(source, weight, bias, shape[1], (node,) if added is None else (node, added.node))


def _split(
    values: Sequence[ir.Value], users: Sequence[ir.Node], graph: Facts
) -> tuple[ir.Node, tuple[int, ...]] | None:
    """The Split of which the values are all the parts, in order, and the parts' widths."""
    node = values[0].producer()
    if node is None or (node.domain, node.op_type) != ("", "Split") or list(node.outputs) != list(values):
        return None
    source = operand(node, 0)
    rank = graph.rank(source)
    if rank is None or node.attributes.get_int("axis", 0) not in (-1, rank - 1) or node.graph is not users[0].graph:
        return None
    if any(graph.sole_user(value) is not user for value, user in zip(values, users, strict=True)):
        return None
    shapes = [graph.shape(value) or (None,) for value in values]
    widths = tuple(shape[-1] for shape in shapes if isinstance(shape[-1], int))
    return (node, widths) if len(widths) == len(values) else None


def _tensor(value: ir.Value, graph: Facts) -> ir.TensorProtocol:
    tensor = graph.tensor(value)
    assert tensor is not None
    return tensor
