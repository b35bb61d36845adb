"""f(x) without uses => nothing.

Uses inside control-flow bodies count, at any depth. Refuses nodes of unknown operator sets and nodes without outputs,
which may do more than compute a result. Helps because exporters leave whole chains of unused nodes, and every other
pass leaves the producers of values it no longer needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

import onnx_ir as ir

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import bodies, is_constant, is_dead, is_used_outside
from sardonyx.passes.base import Accuracy, Example, Facts, Match, ModelPass, Proposal, Refused

# Operator sets whose operators only compute their outputs.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft"})
Functions = Set[tuple[str, str]]


class EliminateDeadNodes(ModelPass):
    """Nodes without a used output."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="(float[N, 4] x) => (float[N, 4] y) { a = Neg(x)  b = Exp(a)  y = Relu(x) }",
        after="{ y = Relu(x) }",
        near_miss="""
            (float[N, 4] x) => (float[N, 4] y, int64[N, 1] index)
            { k = Constant <value = int64[1] {1}> ()  top, index = TopK <axis = 1> (x, k)  y = Relu(x) }
        """,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Propose whole chains at a time, consumers before producers, so that one walk finds all."""
        functions = {(function.domain, function.name) for function in graph.model.functions.values()}
        for scope in graph.scopes.values():
            if scope.holder is None:
                yield from _dead(scope.graph, functions)


def _dead(body: ir.Graph, functions: Functions) -> Iterator[Proposal | Refused]:
    constants: dict[str, list[ir.Node]] = defaultdict(list)
    for node in reversed(body):
        if not is_dead(node):
            for _, inner in bodies(node):
                yield from _dead(inner, functions)
        elif is_constant(node):
            constants[owner(node)].append(node)
        elif not _only_computes(node, functions):
            yield Refused("an operator of an unknown operator set may have side effects", (node,))
        else:
            yield Proposal(Match(_with_producers(node, functions), outputs=()), lambda _: ())
    for nodes in constants.values():  # folding leaves thousands of them: one event per module
        yield Proposal(Match(tuple(reversed(nodes)), outputs=()), lambda _: ())


def _only_computes(node: ir.Node, functions: Functions) -> bool:
    return bool(node.outputs) and (node.domain in PURE_DOMAINS or (node.domain, node.op_type) in functions)


def _with_producers(node: ir.Node, functions: Functions) -> tuple[ir.Node, ...]:
    """Return the node after the nodes that are used by it alone, in topological order."""
    chain: dict[ir.Node, None] = {node: None}
    frontier = [node]
    while frontier:
        for producer in frontier.pop().predecessors():
            if producer in chain or producer.graph is not node.graph or not _only_computes(producer, functions):
                continue
            if not any(is_used_outside(output, chain) for output in producer.outputs):
                chain[producer] = None
                frontier.append(producer)
    return tuple(reversed(chain))
