"""Reshape(f(Reshape(x))) => f(x), for an f that works row by row.

Likewise Transpose(f(Transpose(x))). Between them stand operators that work on single elements or along the last axis:
products with a matrix, biases, scales, activations, normalisations. Constants beside them are arranged anew, and a
Gemm, which takes matrices only, becomes a product and a sum. What the two moves do together follows f, if it is not
nothing. Refuses where that would take no fewer nodes, and where the last axis does not stay what it is. Helps because
exporters flatten a tensor before each projection and unflatten it after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import operand
from sardonyx.passes._rows import RowStep, permuted_back, rebuilt, row_step, viewed_back
from sardonyx.passes._views import reshape_target
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.layout.merge_transposes import permutation
from sardonyx.records.run import Accuracy

LONGEST = 12  # steps between the two moves
_Constants = list[np.ndarray | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Steps between two moves, the last first."""

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
    """Moves around row by row work, done once or not at all."""

    name = "eliminate-layout-roundtrips"
    accuracy = Accuracy.REASSOCIATES
    roots = (*sorted(VIEWS), "Transpose")
    opset = 9  # before, a Constant node could not hold integers
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                a = Reshape(x, rows)  c = Gemm(a, w, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  d = Reshape <allowzero = 1> (c, t)  y = Relu(d)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                c = MatMul(x, w)  d = Add(c, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  y = Relu(d)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4, 2] x) => (float[N, 4, 2] y) <int64[2] s = {-1, 8}, int64[3] t = {-1, 4, 2}> {
                a = Reshape(x, s)  b = Softmax(a)  y = Reshape(b, t)
            }
        """,
        refusal="the last axis",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Two moves with row by row work between them."""
        chain = _chain(node, graph)
        if chain is None:
            return None
        found = _exchanged(chain, graph) if node.op_type == "Transpose" else _viewed(chain, graph)
        if isinstance(found, str):
            return Refused(found, chain.nodes)
        left = len(found["after"]) + sum(_has_bias(step.node) for step in chain.steps)
        stays = graph.sole_user(chain.first.outputs[0]) is None
        if left + stays >= 2:
            return Refused("it would take no fewer nodes", chain.nodes)
        return Match(chain.nodes, {"chain": chain, **found})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The steps on the unmoved value, then what is left of the moves."""
        chain: _Chain = match.found["chain"]
        value = chain.first.inputs[0]
        assert value is not None
        for step, beside in zip(reversed(chain.steps), reversed(match.found["beside"]), strict=True):
            value = rebuilt(step, value, beside, op)
        for target in match.found["after"]:
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
    """The way up from a move to the one before it."""
    kinds = {"Transpose"} if node.op_type == "Transpose" else VIEWS
    steps: list[RowStep] = []
    user, value = node, operand(node, 0)
    while value is not None and len(steps) < LONGEST:
        maker = value.producer()
        if maker is None or maker.graph is not node.graph or maker.domain:
            return None
        if maker.op_type in kinds and steps:
            return _Chain(maker, tuple(steps), node) if operand(maker, 0) is not None else None
        if graph.sole_user(value) is not user:
            return None
        step = _step_above(maker, graph)
        if step is None:
            return None
        steps.append(step)
        user, value = maker, maker.inputs[step.place]
    return None


def _step_above(node: ir.Node, graph: Facts) -> RowStep | None:
    """A step whose moved input is the one that is not a constant."""
    for value in node.inputs[:2]:
        if value is not None and graph.tensor(value) is None and value.producer() is not None:
            step = row_step(node, value, graph)
            if step is not None:
                return step
    return None


def _beside(chain: _Chain, graph: Facts, arrange: Callable[[np.ndarray], np.ndarray | None]) -> _Constants | None:
    """The constants beside the steps, arranged for the unmoved value."""
    found: _Constants = []
    for step in chain.steps:
        array = None if step.beside is None else graph.array(step.node.inputs[step.beside])
        arranged = None if array is None else arrange(array)
        if array is not None and arranged is None:
            return None
        found.append(arranged)
    return found


def _viewed(chain: _Chain, graph: Facts) -> dict[str, Any] | str:
    """What becomes of two views, or why they stay."""
    source, viewed = graph.shape(chain.first.inputs[0]), graph.shape(chain.first.outputs[0])
    end, result = graph.shape(chain.last.inputs[0]), graph.shape(chain.last.outputs[0])
    if not source or not viewed or not end or result is None:
        return "a shape is not known"
    if chain.by_rows and (len(source) < 2 or source[-1] != viewed[-1]):
        return "the last axis does not stay what it is"
    beside = _beside(chain, graph, lambda array: viewed_back(array, viewed, source))
    if beside is None:
        return "a constant between them cannot be arranged anew"
    natural = (*source[:-1], end[-1]) if chain.by_rows else source
    if natural == result:
        return {"beside": beside, "after": []}
    given = operand(chain.last, 1) if chain.last.op_type == "Reshape" else None
    target = graph.ints(given)
    if target is not None and 0 not in target:
        return {"beside": beside, "after": [given]}
    known = reshape_target(natural, result)
    return "the joint shape is not certain" if known is None else {"beside": beside, "after": [known]}


def _exchanged(chain: _Chain, graph: Facts) -> dict[str, Any] | str:
    """What becomes of two Transposes, or why they stay."""
    first, last = permutation(chain.first, graph), permutation(chain.last, graph)
    if first is None or last is None or len(first) != len(last):
        return "a permutation is not known"
    if chain.by_rows and first[-1] != len(first) - 1:
        return "the last axis does not stay what it is"
    beside = _beside(chain, graph, lambda array: permuted_back(array, first))
    perm = tuple(first[axis] for axis in last)
    return {"beside": beside, "after": [] if perm == tuple(range(len(perm))) else [perm]}
