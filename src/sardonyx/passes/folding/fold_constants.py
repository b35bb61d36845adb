"""f(constants) => a constant.

Evaluated in batches by the engine that the pipeline provides; Constant nodes become initializers. Refuses nodes that
would grow the model past its budget, judged by their size before anything is computed, and nodes that no engine can
evaluate. Never folds random or quantization operators, nodes with bodies, function calls, operators outside the
standard, or anything that reads an initializer a caller may override. Helps because exporters compute masks, indices
and shapes from constants on every call, and because fusions look for constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import onnx_ir as ir

from sardonyx.ir.facts import Evaluate, Facts
from sardonyx.ir.rules import Match, Proposal, Refused
from sardonyx.passes._foldable import FAILED, GROWS, OUTPUT, UNSIZED, Budget, freed_bytes, give_up, grown_constants
from sardonyx.passes.base import Example, ModelPass
from sardonyx.passes.folding._constant_region import Region, regions
from sardonyx.passes.folding._evaluation import Form, evaluate_in_parts
from sardonyx.passes.folding._large_constants import fold_large
from sardonyx.records.run import Accuracy

CONE = 256  # producers whose origins a folded value inherits; bounds the cost of long shared chains

Vanishing = Mapping[ir.Node, int]


class FoldConstants(ModelPass):
    """Everything that depends on constants only."""

    name = "fold-constants"
    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.0, 2.0}> {
                two = Constant <value = float {2.0}> ()
                a = Mul(w, two)  b = Sqrt(w)  c = Mul(b, w)  d = Sub(c, c)  e = Add(a, d)  y = Mul(x, e)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 2] y) <float[2] e = {2.0, 4.0}> { y = Mul(x, e) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[1000000] y) <int64[1] many = {1000000}> {
                a = ConstantOfShape(many)  y = Add(x, a)
            }
        """,
        refusal=GROWS,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Propose small constants evaluated in batches, then large weights one at a time."""
        if graph.evaluate is None:
            return
        budget = Budget.of(graph)
        for region in regions(graph):
            yield from _fold(region, graph.evaluate, budget)
        yield from fold_large(graph, graph.evaluate, budget)


def _fold(region: Region, engine: Evaluate, budget: Budget) -> Iterator[Proposal | Refused]:
    """Replace the results that are read outside the region; what only the region reads disappears with it."""
    region.learn(engine)
    yield from (Refused(GROWS, (node,)) for node in region.oversized)
    yield from (Refused(UNSIZED, (node,)) for node in region.unsized)
    yield from (Refused(FAILED, (node,)) for node in region.failed)
    vanishing = dict(region.nodes)
    wanted: dict[ir.Node, dict[ir.Value, Form]] = {}
    growth: dict[ir.Node, int] = {}
    for node in reversed(tuple(region.nodes)):
        read = [value for value in node.outputs if _is_read_outside(value, vanishing)]
        if not read:
            continue
        growth[node] = _growth(node, read, vanishing, region)
        is_output = any(value.is_graph_output() for value in read)
        if is_output or not budget.take(growth[node]):
            del vanishing[node]
            yield Refused(OUTPUT if is_output else GROWS, (node,))
        else:
            wanted[node] = {value: region.forms[value] for value in read}
    for root, tensors in tuple(_values(region, wanted, engine)):
        if tensors is None:
            give_up(root)
            yield Refused(FAILED, (root,))
        else:
            match = Match((*_producers(root, vanishing, wanted), root), outputs=tuple(wanted[root]))
            yield Proposal(match, partial(grown_constants, tensors, growth[root]))


def _values(
    region: Region, wanted: Mapping[ir.Node, Mapping[ir.Value, Form]], engine: Evaluate
) -> Iterator[tuple[ir.Node, list[ir.TensorProtocol] | None]]:
    """Yield the values of the roots; those that sizes were inferred from are already known."""
    evaluated = region.constants.evaluated
    remaining: list[ir.Node] = []
    for root in sorted(wanted, key=region.nodes.__getitem__):
        if all(value in evaluated for value in wanted[root]):
            yield root, [evaluated[value] for value in wanted[root]]
        else:
            remaining.append(root)
    yield from evaluate_in_parts(remaining, wanted, region.nodes, region.constants, engine)


def _is_read_outside(value: ir.Value, vanishing: Vanishing) -> bool:
    producer = value.producer()
    assert producer is not None
    return value.is_graph_output() or any(
        use.node not in vanishing or use.node.graph is not producer.graph for use in value.uses()
    )


def _growth(node: ir.Node, read: list[ir.Value], vanishing: Vanishing, region: Region) -> int:
    """Return by how many bytes the model grows if the results are stored and what only they need is removed."""
    cone = {*_producers(node, vanishing, {}), node}
    inputs = (value for member in cone for value in dict.fromkeys(member.inputs))
    freed = sum(freed_bytes(value, cone, region.constants.graph) for value in inputs)
    return (region.size(node, read) or 0) - freed


def _producers(root: ir.Node, vanishing: Vanishing, roots: Mapping[ir.Node, object]) -> tuple[ir.Node, ...]:
    """Return the nodes whose work goes into the constant of one root only, in topological order."""
    positions: dict[ir.Node, int] = {}
    pending = [root]
    while pending and len(positions) < CONE:
        for producer in pending.pop().predecessors():
            if producer in positions or producer in roots:
                continue
            if producer in vanishing:
                positions[producer] = vanishing[producer]
                pending.append(producer)
            elif producer.op_type == "Constant" and producer.graph is root.graph:
                positions[producer] = -1
    return tuple(sorted(positions, key=positions.__getitem__))
