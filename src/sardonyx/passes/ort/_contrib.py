"""What the passes to ONNX Runtime's own operators share: its domain, target checks, biases and residual sums.

The kernels that add a residual before a normalisation take a matrix or a batch of matrices, and a skip of the same
shape or without the batch. They can also return the sum, which is the next residual in networks that normalise first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.rules import Builder, Match, Refused
from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import reshaped
from sardonyx.passes._matching import is_used, producer_of
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


LAYER, RMS = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
NOT_A_BATCH = "the kernel takes only matrices or a batch of matrices"
NOT_EQUAL = "the summands may have different shapes"
NOT_LAST = "it normalises over more than the last axis"
SCALE_SHAPE = "the scale is not a vector as long as the last axis"


class Residual(Struct, frozen=True, eq=False):
    """The sum and its parts; `nodes` are in graph order, the sum last."""

    source: ir.Value
    skip: ir.Value
    biased: Biased | None
    nodes: tuple[ir.Node, ...]


def skip_match(operator: str, norm: ir.Node, graph: Facts) -> Match | Refused | None:
    """Match a normalisation over the last axis with a residual sum before it, for one of the runtime's operators."""
    value, scale = norm.inputs[:2]
    add = producer_of(value, norm, ("Add",))
    if value is None or add is None:
        return None
    shape = graph.shape(value)
    if shape is None or graph.dtype(value) != ir.DataType.FLOAT or any(map(is_used, norm.outputs[1:])):
        return None
    residual = _residual(add, shape, graph)
    if residual is None:
        return None
    nodes = (*(residual.nodes if isinstance(residual, Residual) else (add,)), norm)
    if isinstance(residual, str):
        return Refused(residual, nodes)
    if norm.attributes.get_int("axis", -1) not in (-1, len(shape) - 1):
        return Refused(NOT_LAST, nodes)
    if norm.attributes.get_int("stash_type", 1) != ir.DataType.FLOAT.value:
        return None
    if not norm.attributes.get_float("epsilon", 1e-5) >= 0:
        return Refused("the kernel takes no negative epsilon", nodes)
    if (
        not all(graph.shape(weight) == (shape[-1],) for weight in norm.inputs[1:] if weight is not None)
        or scale is None
    ):
        return Refused(SCALE_SHAPE, nodes)
    build = partial(_skip_norm, operator, norm, residual, graph)
    if graph.sole_consumer(value) is norm:
        return on_ort(Match(nodes, build=partial(build, wants_sum=False)), operator, graph)
    if any(weight is not None and weight.producer() is not None for weight in norm.inputs[1:]):
        return Refused("the sum is also used elsewhere, maybe before the scale is computed", nodes)
    # Consumers of the sum may precede the normalisation, so the new node goes where the sum is.
    match = Match((norm, *residual.nodes), outputs=(value, norm.outputs[0]), build=partial(build, wants_sum=True))
    return on_ort(match, operator, graph)


def _skip_norm(
    operator: str, norm: ir.Node, residual: Residual, graph: Facts, op: Builder, *, wants_sum: bool
) -> tuple[ir.Value, ...]:
    """Build the runtime's operator on the parts of the sum; its results are in the order of the match."""
    bias = None if residual.biased is None else residual.biased.vector(op, graph)
    shift = (operand(norm, 2),) if operator == LAYER else ()
    inputs = (residual.source, residual.skip, norm.inputs[1], *shift, bias)
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    results = op.node(operator, inputs, {"epsilon": epsilon}, domain=DOMAIN, outputs=4 if wants_sum else 1)
    if not wants_sum:
        return results
    for unused in results[1:3]:
        unused.name = ""
    return results[3], results[0]


def _residual(add: ir.Node, shape: Shape, graph: Facts) -> Residual | str | None:
    """Return the parts of the sum, or why the kernel does not take them; None for the sum with a mere bias."""
    outer = as_biased(add, graph)
    if outer is not None:
        inner = producer_of(outer.source, add, ("Add",))
        if inner is None:
            return None
        if graph.sole_consumer(outer.source) is not add or as_biased(inner, graph) is not None:
            return None
        pair = _summands(inner, shape, graph)
        return pair if isinstance(pair, str) else Residual(*pair, outer, (inner, add))
    pair = _summands(add, shape, graph)
    if isinstance(pair, str):
        return pair
    for index in (0, 1):
        biased_summand = biased(pair[index], add, graph)
        if biased_summand is not None and biased_summand.source not in pair:
            summands = (biased_summand.source, pair[1]) if index == 0 else (pair[0], biased_summand.source)
            return Residual(*summands, biased_summand, (biased_summand.node, add))
    return Residual(*pair, None, (add,))


def _summands(add: ir.Node, shape: Shape, graph: Facts) -> tuple[ir.Value, ir.Value] | str:
    """Return the summand with the shape of the sum, then the other, which may lack the batch; or why not."""
    if len(shape) not in (2, 3):
        return NOT_A_BATCH
    without_batch = (shape, (1, *shape[1:]), shape[1:]) if len(shape) == 3 else (shape,)
    for source, skip in (add.inputs, add.inputs[::-1]):
        if source is None or skip is None or None in shape:
            continue
        if graph.shape(source) == shape and graph.shape(skip) in without_batch:
            return source, skip
    return NOT_EQUAL
