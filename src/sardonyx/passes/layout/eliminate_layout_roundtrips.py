"""Reshape(f(Reshape(x))) => f(x), for an f that works row by row.

Likewise Transpose(f(Transpose(x))). f consists of operators that work on single elements or along the last axis:
products with a matrix, biases, scales, activations, normalisations. Their constants are rearranged, and a Gemm, which
takes matrices only, becomes MatMul and Add. If the two moves do not cancel, their combination follows f. Refuses if
that saves no node, and if the last axis changes. Helps because exporters flatten a tensor before each projection and
unflatten it after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Shape
from sardonyx.ir.ops import BINARY, SOFTMAXES, UNARY, VARIADIC, VIEWS
from sardonyx.ir.scopes import has_references, operand
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._matching import optional, permutation, require, required, reshape_target, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, NoMatch, Replacement

LONGEST = 12  # nodes between the two moves
_Change = tuple[list[ir.TensorProtocol | None], list[Any]]  # constants rearranged, targets of the moves that remain


class _Chain(Struct, frozen=True, eq=False):
    """The steps between two moves, last step first."""

    first: ir.Node
    steps: tuple[RowStep, ...]
    last: ir.Node

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.first, *(step.node for step in reversed(self.steps)), self.last)

    @property
    def by_rows(self) -> bool:
        return any(step.by_rows for step in self.steps)


class EliminateLayoutRoundtrips(NodePass):
    """Moves before and after work that is done row by row."""

    accuracy = Accuracy.REASSOCIATES
    roots = (*sorted(VIEWS), "Transpose")
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                a = Reshape(x, rows)  c = Gemm(a, w, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  d = Reshape <allowzero = 1> (c, t)  y = Relu(d)
            }
        """,
        after="""{
            c = MatMul(x, w)  d = Add(c, b)  s = Shape(x)  n = Slice(s, start, end)
            t = Concat <axis = 0> (n, three)  y = Relu(d)
        }""",
        near_miss="""
            (float[N, 4, 2] x) => (float[N, 4, 2] y)
            <int64[2] s = {-1, 8}, int64[3] t = {-1, 4, 2}> { a = Reshape(x, s)  b = Softmax(a)  y = Reshape(b, t) }
        """,
        refusal="the last axis changes",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        chain = _chain(node, graph)
        constants, after = _exchanged(chain, graph) if node.op_type == "Transpose" else _viewed(chain, graph)
        gemms = (step.node for step in chain.steps if step.node.op_type == "Gemm")
        added = len(after) + sum(operand(gemm, 2) is not None for gemm in gemms)
        keeps_first = graph.sole_consumer(chain.first.outputs[0]) is None
        require(added + keeps_first < 2, "it would save no node", *chain.nodes)
        return Match(chain.nodes, build=partial(_rewritten, chain, constants, after))


def _rewritten(
    chain: _Chain, constants: Sequence[ir.TensorProtocol | None], after: Sequence[Any], op: Builder
) -> Replacement:
    """Apply the steps to the unmoved value, then the combination of the moves."""
    value = required(chain.first.inputs[0])
    for step, constant in zip(reversed(chain.steps), reversed(constants), strict=True):
        value = _rebuilt(step, value, constant, op)
    for target in after:
        if chain.last.op_type == "Transpose":
            value = op.Transpose(value, perm=target)
        elif isinstance(target, ir.Value):
            value = op.Reshape(value, target)
        else:
            value = op.Reshape(value, op.constant(np.array(target, np.int64), "target"))
    return value


def _chain(node: ir.Node, graph: Facts) -> _Chain:
    """Return the chain from a move back to the one before it."""
    kinds = {"Transpose"} if node.op_type == "Transpose" else VIEWS
    steps: list[RowStep] = []
    user, value = node, operand(node, 0)
    while len(steps) < LONGEST:
        value = required(value)
        producer = required(value.producer())
        require(producer.graph is node.graph and not producer.domain)
        if producer.op_type in kinds and steps:
            required(operand(producer, 0))
            return _Chain(producer, tuple(steps), node)
        require(graph.sole_consumer(value) is user)
        step = None
        for place, source in enumerate(producer.inputs[:2]):  # the moved one is not a constant
            if step is None and source is not None and source.producer() is not None and graph.tensor(source) is None:
                step = _row_step(producer, place, graph)
        steps.append(required(step))
        user, value = producer, producer.inputs[steps[-1].place]
    raise NoMatch


def _rearranged_constants(
    chain: _Chain, graph: Facts, arrange: Callable[[ir.TensorProtocol], ir.TensorProtocol | None]
) -> list[ir.TensorProtocol | None]:
    """Return the constants of the steps rearranged for the unmoved value."""
    refusal = "a constant between them cannot be rearranged"
    return [
        None
        if step.constant is None
        else required(arrange(required(graph.tensor(step.node.inputs[step.constant]))), refusal, *chain.nodes)
        for step in chain.steps
    ]


def _viewed(chain: _Chain, graph: Facts) -> _Change:
    """Return the combination of two views; refuse if they have to stay."""
    values = (chain.first.inputs[0], chain.first.outputs[0], chain.last.inputs[0], chain.last.outputs[0])
    source, viewed, end, result = (required(graph.shape(value), "a shape is unknown", *chain.nodes) for value in values)
    require(() not in (source, viewed, end), "a shape is unknown", *chain.nodes)
    keeps_last = not chain.by_rows or (len(source) > 1 and source[-1] == viewed[-1])
    require(keeps_last, "the last axis changes", *chain.nodes)
    constants = _rearranged_constants(chain, graph, lambda tensor: viewed_back(tensor, viewed, source))
    shape_after = (*source[:-1], end[-1]) if chain.by_rows else source
    if shape_after == result:
        return constants, []
    target_value = operand(chain.last, 1) if chain.last.op_type == "Reshape" else None
    target = graph.ints(target_value)
    if target is not None and 0 not in target:
        return constants, [target_value]
    refusal = "the combined target is not constant"
    return constants, [required(reshape_target(shape_after, result), refusal, *chain.nodes)]


def _exchanged(chain: _Chain, graph: Facts) -> _Change:
    """Return the combination of two Transposes; refuse if they have to stay."""
    moves = (chain.first, chain.last)
    first, last = (required(permutation(each, graph), "a permutation is unknown", *chain.nodes) for each in moves)
    require(len(first) == len(last), "a permutation is unknown", *chain.nodes)
    keeps_last = not chain.by_rows or first[-1] == len(first) - 1
    require(keeps_last, "the last axis changes", *chain.nodes)
    constants = _rearranged_constants(chain, graph, lambda tensor: permuted_back(tensor, first))
    perm = tuple(first[axis] for axis in last)
    return constants, [] if perm == tuple(range(len(perm))) else [perm]


# Operators that work row by row or element by element, so that a view or Transpose can move across them.
#
# Their other operands (a bias, a scale) have to fit after the move: a vector along the last axis stays as it is, and a
# larger constant is reshaped or transposed.

PAIRWISE = BINARY | VARIADIC
ALONG_ROWS = SOFTMAXES | {"LayerNormalization", "RMSNormalization"}
NEGATIVE_AXES_SINCE = 11


class RowStep(Struct, frozen=True, eq=False):
    """A node that gives the same result before a move as after it."""

    node: ir.Node
    place: int  # the input that is moved
    by_rows: bool  # requires that the move keeps the last axis
    constant: int | None = None  # a constant input that has to be rearranged


@optional
def _row_step(node: ir.Node, place: int, graph: Facts) -> RowStep:
    """Return how a node works on one of its operands if it does so row by row or element by element."""
    attributes, rank = node.attributes, graph.rank(node.inputs[place])
    require(not has_references(node))
    if node.op_type in PAIRWISE:
        return _pairwise(node, place, graph)
    require(place == 0)
    if node.op_type in UNARY:
        return RowStep(node, 0, by_rows=False)
    if node.op_type == "MatMul":
        require(graph.rank(node.inputs[1]) == 2 and (rank or 0) >= 2)
    elif node.op_type == "Gemm":  # x @ W + b with x not transposed, no scaling, and b a row
        bias = operand(node, 2)
        shape = graph.shape(bias) if bias is not None else ()
        require(all(attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")))
        require(not attributes.get_int("transA", 0) and all(dim == 1 for dim in required(shape)[:-1]))
    else:
        require(node.op_type in ALONG_ROWS and len(node.outputs) == 1 and graph.opset(node) >= NEGATIVE_AXES_SINCE)
        default = 1 if node.op_type.endswith("max") and graph.opset(node) < 13 else -1
        require(attributes.get_int("axis", default) in (-1, required(rank) - 1))
        require(all(graph.rank(value) in (0, 1) for value in node.inputs[1:] if value is not None))
    return RowStep(node, 0, by_rows=True)


def _pairwise(node: ir.Node, place: int, graph: Facts) -> RowStep:
    require(len(node.inputs) == 2)
    value, other = node.inputs[place], required(node.inputs[1 - place])
    shape, rank = required(graph.shape(other)), required(graph.rank(value))
    require(other is not value and len(shape) <= rank and graph.same_shape(value, node.outputs[0]))
    if not shape:
        return RowStep(node, place, by_rows=False)
    if graph.array(other) is not None and graph.dtype(other) is not ir.DataType.STRING:
        return RowStep(node, place, by_rows=False, constant=1 - place)
    require(len(shape) == 1)
    return RowStep(node, place, by_rows=True)


def _rebuilt(step: RowStep, value: ir.Value, constant: ir.TensorProtocol | None, op: Builder) -> ir.Value:
    """Apply the same step to another value; a Gemm becomes MatMul and Add, which accept any rank."""
    node = step.node
    if node.op_type == "Gemm":
        weight = node.inputs[1]
        if node.attributes.get_int("transB", 0):
            weight = op.Transpose(weight, perm=[1, 0])
        product, bias = op.MatMul(value, weight), operand(node, 2)
        return product if bias is None else op.Add(product, bias)
    inputs = with_operand(node, step.place, value)
    if step.constant is not None and constant is not None:
        inputs = (*inputs[: step.constant], op.constant(constant), *inputs[step.constant + 1 :])
    changed = {"axis": -1} if node.op_type in ALONG_ROWS else {}
    return op.like(node, inputs, **changed)


def viewed_back(constant: ir.TensorProtocol, viewed: Shape, source: Shape) -> ir.TensorProtocol | None:
    """Reshape a constant that is combined with a view so that it can be combined with the source of the view."""
    if constant.size == 1:
        return reshaped(constant, ())
    sizes = constant.shape.numpy()
    shape = (*(1,) * (len(viewed) - len(sizes)), *sizes)
    common = 0
    # The trailing axes that the view keeps; only what is in front of them is reshaped.
    while common < min(len(viewed), len(source)) and viewed[-1 - common] == source[-1 - common]:
        common += 1
    head, source_head = shape[: len(shape) - common], source[: len(source) - common]
    if math.prod(head) == 1:
        return reshaped(constant, (*(1,) * len(source_head), *shape[len(shape) - common :]))
    if head != tuple(viewed[: len(viewed) - common]) or not all(isinstance(dim, int) for dim in source_head):
        return None
    dims = [dim for dim in source_head if isinstance(dim, int)]
    fits = math.prod(dims) == math.prod(head)
    return reshaped(constant, (*dims, *shape[len(shape) - common :])) if fits else None


def permuted_back(constant: ir.TensorProtocol, perm: Sequence[int]) -> ir.TensorProtocol:
    """Transpose a constant that is combined with the result of a Transpose so that it fits the input."""
    if constant.size == 1:
        return reshaped(constant, ())
    sizes = constant.shape.numpy()
    whole = reshaped(constant, (*(1,) * (len(perm) - len(sizes)), *sizes))
    return transposed(whole, [list(perm).index(axis) for axis in range(len(perm))])
