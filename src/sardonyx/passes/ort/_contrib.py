"""What the passes to ONNX Runtime's own operators share: its domain, target checks, biases and residual sums.

The kernels that add a residual before a normalisation take a matrix or a batch of matrices, and a skip of the same
shape or without the batch. They can also return the sum, which is the next residual in networks that normalise first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.rules import Builder, Match, Refused
from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import reshaped
from sardonyx.passes._matching import is_used, producer_of, require, required
from sardonyx.passes.base import NodePass

DOMAIN = "com.microsoft"
CONVOLUTIONS = ("Conv", f"{DOMAIN}::FusedConv")


class OrtPass(NodePass):
    """A fusion into an operator of ONNX Runtime; for other targets it is reported as missed (see `on_ort`)."""

    targets = ("ort",)
    reports_missed = True


def on_ort(match: Match, operator: str, graph: Facts) -> Match:
    """Return the match on the `ort` target; elsewhere it is a near miss. No match in functions, whose imports stay."""
    require(not graph.scope(match.root).in_function)
    require(graph.target == "ort", f"needs the ort target's {operator}", *match.nodes)
    return match


def contrib(
    operator: str,
    nodes: tuple[ir.Node, ...],
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    graph: Facts,
) -> Match:
    """Match the nodes as one of the runtime's operators, which have kernels for single precision only."""
    require(graph.dtype(nodes[-1].outputs[0]) == ir.DataType.FLOAT)
    new = tuple(inputs), dict(attributes)
    return on_ort(Match(nodes, build=lambda op: op.node(operator, *new, domain=DOMAIN)), operator, graph)


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
    return as_biased(node, graph) if node is not None and graph.sole_consumer(node.outputs[0]) is user else None


def as_biased(node: ir.Node, graph: Facts) -> Biased | None:
    """Return an Add as the addition of a vector, or of such a constant with leading axes of size one."""
    for source, bias in (node.inputs, node.inputs[::-1]):
        shape, own = graph.shape(source), graph.shape(bias)
        if source is None or bias is None or not shape or not own or not 1 < len(shape) >= len(own):
            continue
        is_vector = len(own) == 1 or (all(dim == 1 for dim in own[:-1]) and graph.tensor(bias) is not None)
        if is_vector and isinstance(shape[-1], int) and own[-1] == shape[-1]:
            return Biased(node, source, bias)
    return None


class Projection(Struct, frozen=True, eq=False):
    """x * W + b with a constant matrix and, if there is one, a constant vector."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    width: int
    nodes: tuple[ir.Node, ...]


def projection(value: ir.Value | None, user: ir.Node, graph: Facts) -> Projection:
    """Return a value as a product with a constant matrix and maybe a bias, which only the user reads; else refuse."""
    added = biased(value, user, graph)
    product, reader, bias = (value, user, None) if added is None else (added.source, added.node, added.bias)
    node = required(producer_of(product, user, ("MatMul",)))
    require(graph.sole_consumer(node.outputs[0]) is reader, "a projection is read elsewhere")
    source, weight = map(required, node.inputs)
    shape = required(graph.static_shape(weight))
    require(len(shape) == 2)
    is_constant = graph.tensor(weight) is not None and (bias is None or graph.tensor(bias) is not None)
    require(is_constant, "the weight or bias of a projection is not a constant")
    return Projection(source, weight, bias, shape[1], (node,) if added is None else (node, added.node))


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


def skip_match(operator: str, norm: ir.Node, graph: Facts) -> Match:
    """Match a normalisation over the last axis with a residual sum before it, for one of the runtime's operators."""
    add = required(producer_of(norm.inputs[0], norm, ("Add",)))
    value, weights = add.outputs[0], norm.inputs[1:]
    shape = required(graph.shape(value))
    require(graph.dtype(value) == ir.DataType.FLOAT and not any(map(is_used, norm.outputs[1:])))
    residual = _residual(add, norm, shape, graph)
    nodes = (*residual.nodes, norm)
    require(norm.attributes.get_int("axis", -1) in (-1, len(shape) - 1), NOT_LAST, *nodes)
    require(norm.attributes.get_int("stash_type", 1) == ir.DataType.FLOAT.value)
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    require(epsilon >= 0, "the kernel takes no negative epsilon", *nodes)
    fits = all(graph.shape(weight) == (shape[-1],) for weight in weights if weight is not None)
    require(fits and weights[0] is not None, SCALE_SHAPE, *nodes)
    wants_sum = graph.sole_consumer(value) is not norm
    is_computed = wants_sum and any(weight is not None and weight.producer() is not None for weight in weights)
    require(not is_computed, "the sum is also used elsewhere, maybe before the scale is computed", *nodes)

    def build(op: Builder) -> tuple[ir.Value, ...]:
        """Build the runtime's operator on the parts of the sum; its results are in the order of the match."""
        bias = None if residual.biased is None else residual.biased.vector(op, graph)
        shift = (operand(norm, 2),) if operator == LAYER else ()
        inputs = (residual.source, residual.skip, weights[0], *shift, bias)
        results = op.node(operator, inputs, {"epsilon": epsilon}, domain=DOMAIN, outputs=4 if wants_sum else 1)
        for unused in results[1:3]:
            unused.name = ""
        return (results[3], results[0]) if wants_sum else results

    if not wants_sum:
        return on_ort(Match(nodes, build=build), operator, graph)
    # Consumers of the sum may precede the normalisation, so the new node goes where the sum is.
    match = Match((norm, *residual.nodes), outputs=(value, norm.outputs[0]), build=build)
    return on_ort(match, operator, graph)


def _residual(add: ir.Node, norm: ir.Node, shape: Shape, graph: Facts) -> Residual:
    """Return the parts of the sum; a sum with a mere bias is no match."""
    outer = as_biased(add, graph)
    if outer is not None:
        inner = required(producer_of(outer.source, add, ("Add",)))
        require(graph.sole_consumer(outer.source) is add and as_biased(inner, graph) is None)
        return Residual(*_summands(inner, shape, (add, norm), graph), outer, (inner, add))
    source, skip = pair = _summands(add, shape, (add, norm), graph)
    first, second = (biased(summand, add, graph) for summand in pair)
    if first is not None and first.source not in pair:
        return Residual(first.source, skip, first, (first.node, add))
    if second is not None and second.source not in pair:
        return Residual(source, second.source, second, (second.node, add))
    return Residual(source, skip, None, (add,))


def _summands(add: ir.Node, shape: Shape, nodes: tuple[ir.Node, ...], graph: Facts) -> tuple[ir.Value, ir.Value]:
    """Return the summand with the shape of the sum, then the other, which may lack the batch."""
    require(len(shape) in (2, 3), NOT_A_BATCH, *nodes)
    without_batch = (shape, (1, *shape[1:]), shape[1:]) if len(shape) == 3 else (shape,)
    for source, skip in (add.inputs, add.inputs[::-1]):
        fits = graph.shape(source) == shape and graph.shape(skip) in without_batch
        if fits and source is not None and skip is not None:
            return source, skip
    raise Refused(NOT_EQUAL, nodes)
