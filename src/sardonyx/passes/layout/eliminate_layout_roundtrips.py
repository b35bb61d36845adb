"""Reshape(f(Reshape(x))) => f(x), for an f that works row by row.

Likewise Transpose(f(Transpose(x))). f consists of operators that work on single elements or along the last axis:
products with a matrix, biases, scales, activations, normalisations. Their constants are rearranged, and a Gemm, which
takes matrices only, becomes MatMul and Add. If the two moves do not cancel, their combination follows f. Refuses if
that saves no node, and if the last axis changes. Helps because exporters flatten a tensor before each projection and
unflatten it after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.passes._rows import RowStep, permuted_back, rebuilt, row_step, viewed_back
from sardonyx.passes._shapes import permutation, reshape_target
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

LONGEST = 12  # nodes between the two moves
_Constants = list[ir.TensorProtocol | None]


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
        """Match two moves with row-by-row work between them."""
        chain = _chain(node, graph)
        if chain is None:
            return None
        change = _exchanged(chain, graph) if node.op_type == "Transpose" else _viewed(chain, graph)
        if isinstance(change, str):
            return Refused(change, chain.nodes)
        added = len(change["after"]) + sum(_has_bias(step.node) for step in chain.steps)
        keeps_first = graph.sole_consumer(chain.first.outputs[0]) is None
        if added + keeps_first >= 2:
            return Refused("it would save no node", chain.nodes)
        return Match(chain.nodes, {"chain": chain, **change})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Apply the steps to the unmoved value, then the combination of the moves."""
        chain: _Chain = match.details["chain"]
        value = chain.first.inputs[0]
        assert value is not None
        for step, constant in zip(reversed(chain.steps), reversed(match.details["constants"]), strict=True):
            value = rebuilt(step, value, constant, op)
        for target in match.details["after"]:
            if chain.last.op_type == "Transpose":
                value = op.Transpose(value, perm=target)
            elif isinstance(target, ir.Value):
                value = op.Reshape(value, target)
            else:
                value = op.Reshape(value, op.constant(np.array(target, np.int64), "target"))
        return value


def _has_bias(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and operand(node, 2) is not None


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


def _viewed(chain: _Chain, graph: Facts) -> dict[str, Any] | str:
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
        return {"constants": constants, "after": []}
    target_value = operand(chain.last, 1) if chain.last.op_type == "Reshape" else None
    target = graph.ints(target_value)
    if target is not None and 0 not in target:
        return {"constants": constants, "after": [target_value]}
    computed_target = reshape_target(shape_after, result)
    return (
        "the combined target is not constant"
        if computed_target is None
        else {"constants": constants, "after": [computed_target]}
    )


def _exchanged(chain: _Chain, graph: Facts) -> dict[str, Any] | str:
    """Return the combination of two Transposes, or why they stay."""
    first, last = permutation(chain.first, graph), permutation(chain.last, graph)
    if first is None or last is None or len(first) != len(last):
        return "a permutation is unknown"
    if chain.by_rows and first[-1] != len(first) - 1:
        return "the last axis changes"
    constants = _rearranged_constants(chain, graph, lambda tensor: permuted_back(tensor, first))
    perm = tuple(first[axis] for axis in last)
    return {"constants": constants, "after": [] if perm == tuple(range(len(perm))) else [perm]}
