"""What the passes to ONNX Runtime's own operators share: its domain, target checks, and additions of a bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused
from sardonyx.ir.tensors import reshaped
from sardonyx.passes._matching import producer_of
from sardonyx.passes.base import NodePass

DOMAIN = "com.microsoft"


class OrtPass(NodePass):
    """A fusion into an operator of ONNX Runtime; for other targets it is reported as missed (see `on_ort`)."""

    targets = ("ort",)
    reports_missed = True


def on_ort(match: Match, operator: str, graph: Facts) -> Match | Refused | None:
    """Return the match on the `ort` target, otherwise a refusal; None in functions, which keep their imports."""
    if graph.scope(match.root).in_function:
        return None
    if graph.target != "ort":
        return Refused(f"needs the ort target's {operator}", match.nodes)
    return match


class Biased(Struct, frozen=True, eq=False):
    """x + b, where b has one number per element of the last axis of x, and x has the shape of the sum."""

    node: ir.Node
    source: ir.Value
    bias: ir.Value

    def vector(self, op: Builder, graph: Facts) -> ir.Value:
        """Return the bias as a vector, as the kernels require; a constant with leading axes of size one is reshaped."""
        tensor = graph.tensor(self.bias)
        if graph.rank(self.bias) == 1 or tensor is None:
            return self.bias
        return op.constant(reshaped(tensor, (tensor.size,)), "bias")


def biased(value: ir.Value | None, user: ir.Node, graph: Facts) -> Biased | None:
    """Return the Add of a bias that produces `value` if `user` is its only consumer, otherwise None."""
    node = producer_of(value, user, ("Add",))
    if value is None or node is None:
        return None
    return as_biased(node, graph) if graph.sole_consumer(value) is user else None


def as_biased(node: ir.Node, graph: Facts) -> Biased | None:
    """Return an Add as the addition of a bias, otherwise None."""
    for source, bias in (node.inputs, node.inputs[::-1]):
        shape = graph.shape(source)
        if source is None or bias is None or shape is None or len(shape) < 2 or not isinstance(shape[-1], int):
            continue
        if _is_vector(bias, shape[-1], len(shape), graph):
            return Biased(node, source, bias)
    return None


def _is_vector(value: ir.Value, length: int, most: int, graph: Facts) -> bool:
    """Return whether a value is a vector of that length, or such a constant with leading axes of size one."""
    shape = graph.shape(value)
    if not shape or shape[-1] != length or len(shape) > most:
        return False
    return len(shape) == 1 or (all(dim == 1 for dim in shape[:-1]) and graph.tensor(value) is not None)


def fused_conv(
    conv: ir.Node, nodes: tuple[ir.Node, ...], activation: Mapping[str, Any], graph: Facts
) -> Match | Refused | None:
    """Return the match for a FusedConv with the attributes of a convolution and of the activation after it."""
    attributes = {**conv.attributes, **activation}
    match = Match(nodes, build=lambda op: op.node("FusedConv", tuple(conv.inputs), attributes, domain=DOMAIN))
    return on_ort(match, "FusedConv", graph)


def is_plain_conv(node: ir.Node) -> bool:
    """Return whether a node is a Conv, or a FusedConv without an activation."""
    if node.op_type == "Conv":
        return node.domain == ""
    return (node.domain, node.op_type) == (DOMAIN, "FusedConv") and "activation" not in node.attributes
