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
from sardonyx.passes._matching import permutation, reshape_target
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

LONGEST = 12  # nodes between the two moves
_Constants = list[ir.TensorProtocol | None]
_Change = tuple[_Constants, list[Any]]  # the constants rearranged, and the targets of the moves that remain


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

    name = "eliminate-layout-roundtrips"
    accuracy = Accuracy.REASSOCIATES
    roots = (*sorted(VIEWS), "Transpose")
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            agraph (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                a = Reshape(x, rows)  c = Gemm(a, w, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  d = Reshape <allowzero = 1> (c, t)  y = Relu(d)
            }
        """,
        after="""
            agraph (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                c = MatMul(x, w)  d = Add(c, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  y = Relu(d)
            }
        """,
        near_miss="""
            agraph (float[N, 4, 2] x) => (float[N, 4, 2] y) <int64[2] s = {-1, 8}, int64[3] t = {-1, 4, 2}> {
                a = Reshape(x, s)  b = Softmax(a)  y = Reshape(b, t)
            }
        """,
        refusal="the last axis changes",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        chain = _chain(node, graph)
        if chain is None:
            return None
        change = _exchanged(chain, graph) if node.op_type == "Transpose" else _viewed(chain, graph)
        if isinstance(change, str):
            return Refused(change, chain.nodes)
        constants, after = change
        gemms = (step.node for step in chain.steps if step.node.op_type == "Gemm")
        added = len(after) + sum(operand(gemm, 2) is not None for gemm in gemms)
        keeps_first = graph.sole_consumer(chain.first.outputs[0]) is None
        if added + keeps_first >= 2:
            return Refused("it would save no node", chain.nodes)
        return Match(chain.nodes, build=partial(_rewritten, chain, constants, after))


def _rewritten(chain: _Chain, constants: _Constants, after: Sequence[Any], op: Builder) -> Replacement:
    """Apply the steps to the unmoved value, then the combination of the moves."""
    value = chain.first.inputs[0]
    assert value is not None
    for step, constant in zip(reversed(chain.steps), reversed(constants), strict=True):
        value = rebuilt(step, value, constant, op)
    for target in after:
        if chain.last.op_type == "Transpose":
            value = op.Transpose(value, perm=target)
        elif isinstance(target, ir.Value):
            value = op.Reshape(value, target)
        else:
            value = op.Reshape(value, op.constant(np.array(target, np.int64), "target"))
    return value


def _chain(node: ir.Node, graph: Facts) -> _Chain | None:
    """Return the chain from a move back to the one before it."""
    kinds = {"Transpose"} if node.op_type == "Transpose" else VIEWS
    steps: list[RowStep] = []
    user, value = node, operand(node, 0)
    while value is not None and len(steps) < LONGEST:
        producer = value.producer()
        if producer is None or producer.graph is not node.graph or producer.domain:
            return None
        if producer.op_type in kinds and steps:
            return _Chain(producer, tuple(steps), node) if operand(producer, 0) is not None else None
        if graph.sole_consumer(value) is not user:
            return None
        step = _step_above(producer, graph)
        if step is None:
            return None
        steps.append(step)
        user, value = producer, producer.inputs[step.place]
    return None


def _step_above(node: ir.Node, graph: Facts) -> RowStep | None:
    """Return a step whose moved input is the one that is not a constant."""
    for value in node.inputs[:2]:
        if value is not None and graph.tensor(value) is None and value.producer() is not None:
            step = row_step(node, value, graph)
            if step is not None:
                return step
    return None


def _rearranged_constants(
    chain: _Chain, graph: Facts, arrange: Callable[[ir.TensorProtocol], ir.TensorProtocol | None]
) -> _Constants | None:
    """Return the constants of the steps rearranged for the unmoved value, or None if one cannot be."""
    constants: _Constants = []
    for step in chain.steps:
        tensor = None if step.constant is None else graph.tensor(step.node.inputs[step.constant])
        arranged = None if tensor is None else arrange(tensor)
        if tensor is not None and arranged is None:
            return None
        constants.append(arranged)
    return constants


def _viewed(chain: _Chain, graph: Facts) -> _Change | str:
    """Return the combination of two views, or why they stay."""
    source, viewed = graph.shape(chain.first.inputs[0]), graph.shape(chain.first.outputs[0])
    end, result = graph.shape(chain.last.inputs[0]), graph.shape(chain.last.outputs[0])
    if not source or not viewed or not end or result is None:
        return "a shape is unknown"
    if chain.by_rows and (len(source) < 2 or source[-1] != viewed[-1]):
        return "the last axis changes"
    constants = _rearranged_constants(chain, graph, lambda tensor: viewed_back(tensor, viewed, source))
    if constants is None:
        return "a constant between them cannot be rearranged"
    shape_after = (*source[:-1], end[-1]) if chain.by_rows else source
    if shape_after == result:
        return constants, []
    target_value = operand(chain.last, 1) if chain.last.op_type == "Reshape" else None
    target = graph.ints(target_value)
    if target is not None and 0 not in target:
        return constants, [target_value]
    computed_target = reshape_target(shape_after, result)
    return "the combined target is not constant" if computed_target is None else (constants, [computed_target])


def _exchanged(chain: _Chain, graph: Facts) -> _Change | str:
    """Return the combination of two Transposes, or why they stay."""
    first, last = permutation(chain.first, graph), permutation(chain.last, graph)
    if first is None or last is None or len(first) != len(last):
        return "a permutation is unknown"
    if chain.by_rows and first[-1] != len(first) - 1:
        return "the last axis changes"
    constants = _rearranged_constants(chain, graph, lambda tensor: permuted_back(tensor, first)) or []
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


def row_step(node: ir.Node, value: ir.Value, graph: Facts) -> RowStep | None:
    """Return how a node works on a value if it does so row by row or element by element, otherwise None."""
    if node.domain or has_references(node):
        return None
    place = next(index for index, candidate in enumerate(node.inputs) if candidate is value)
    if node.op_type in UNARY:
        return RowStep(node, place, by_rows=False) if place == 0 else None
    if node.op_type in PAIRWISE:
        return _pairwise(node, place, graph)
    if place != 0:
        return None
    if node.op_type == "MatMul":
        rows = graph.rank(node.inputs[1]) == 2 and (graph.rank(value) or 0) >= 2
        return RowStep(node, 0, by_rows=True) if rows else None
    if node.op_type == "Gemm":
        return RowStep(node, 0, by_rows=True) if _is_plain_gemm(node, graph) else None
    rank = graph.rank(value)
    if node.op_type in ALONG_ROWS and rank is not None and len(node.outputs) == 1:
        default = 1 if node.op_type.endswith("max") and graph.opset(node) < 13 else -1
        last = node.attributes.get_int("axis", default) in (-1, rank - 1) and graph.opset(node) >= NEGATIVE_AXES_SINCE
        vectors = all(graph.rank(value) in (0, 1) for value in node.inputs[1:] if value is not None)
        return RowStep(node, 0, by_rows=True) if last and vectors else None
    return None


def _is_plain_gemm(node: ir.Node, graph: Facts) -> bool:
    """Return whether a Gemm is x @ W + b with x not transposed, no scaling, and b a row."""
    attributes = node.attributes
    plain = all(attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    bias = operand(node, 2)
    shape = graph.shape(bias)
    flat = bias is None or (shape is not None and all(dim == 1 for dim in shape[:-1]))
    return plain and not attributes.get_int("transA", 0) and flat


def _pairwise(node: ir.Node, place: int, graph: Facts) -> RowStep | None:
    other = node.inputs[1 - place] if len(node.inputs) == 2 else None
    shape = graph.shape(other)
    rank = graph.rank(node.inputs[place])
    if other is None or other is node.inputs[place] or shape is None or rank is None or len(shape) > rank:
        return None
    if not graph.same_shape(node.inputs[place], node.outputs[0]):
        return None
    if not shape:
        return RowStep(node, place, by_rows=False)
    if graph.array(other) is not None and graph.dtype(other) is not ir.DataType.STRING:
        return RowStep(node, place, by_rows=False, constant=1 - place)
    return RowStep(node, place, by_rows=True) if len(shape) == 1 else None


def rebuilt(step: RowStep, value: ir.Value, constant: ir.TensorProtocol | None, op: Builder) -> ir.Value:
    """Apply the same step to another value; a Gemm becomes MatMul and Add, which accept any rank."""
    node = step.node
    if node.op_type == "Gemm":
        weight = node.inputs[1]
        if node.attributes.get_int("transB", 0):
            weight = op.Transpose(weight, perm=[1, 0])
        product, bias = op.MatMul(value, weight), operand(node, 2)
        return product if bias is None else op.Add(product, bias)
    inputs = list(node.inputs)
    inputs[step.place] = value
    if step.constant is not None and constant is not None:
        inputs[step.constant] = op.constant(constant)
    changed = {"axis": -1} if node.op_type in ALONG_ROWS else {}
    return op.like(node, tuple(inputs), **changed)


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
