"""What passes to ONNX Runtime's own operators share: its domain, what its kernels ask for, and sums of a bias."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Match, Refused

DOMAIN = "com.microsoft"


def on_ort(match: Match, operator: str, graph: Facts) -> Match | Refused | None:
    """The match on the target that has the operator, else the opportunity told; functions keep their imports."""
    if graph.scope(match.root).in_function:
        return None
    if graph.target != "ort":
        return Refused(f"needs the ort target's {operator}", match.nodes)
    return match


@dataclass(frozen=True, slots=True, eq=False)
class Biased:
    """x + b, where b has one number for each element of x's last axis and x the shape of the sum."""

    node: ir.Node
    source: ir.Value
    bias: ir.Value


def biased(value: ir.Value | None, user: ir.Node, graph: Facts) -> Biased | None:
    """The sum of a vector and something of the sum's own shape that makes `value`, where only `user` reads it."""
    node = None if value is None else value.producer()
    if value is None or node is None or (node.domain, node.op_type) != ("", "Add") or node.graph is not user.graph:
        return None
    if graph.sole_user(value) is not user:
        return None
    return as_biased(node, graph)


def as_biased(node: ir.Node, graph: Facts) -> Biased | None:
    """An Add of a vector and something of the sum's own shape."""
    for source, bias in (node.inputs, node.inputs[::-1]):
        if source is None or bias is None or graph.shape(source) is None:
            continue
        shape = graph.shape(source) or ()
        if len(shape) > 1 and isinstance(shape[-1], int) and graph.shape(bias) == (shape[-1],):
            return Biased(node, source, bias)
    return None


def is_plain_conv(node: ir.Node) -> bool:
    """A convolution to which nothing is applied yet; the runtime's own may have taken over a sum before."""
    if node.op_type == "Conv":
        return node.domain == ""
    return (node.domain, node.op_type) == (DOMAIN, "FusedConv") and "activation" not in node.attributes
