"""f(x), read by nobody => nothing.

What a control-flow body reads counts as read, at any depth. Refuses nodes of operator sets it does not know, and nodes
without outputs: those are there for something other than a result. Helps because exporters leave whole chains behind,
and every other pass leaves makers of values it no longer needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import owner
from sardonyx.ir.rules import Match, Proposal, Refused
from sardonyx.ir.scopes import bodies, is_constant
from sardonyx.ir.transaction import is_dead
from sardonyx.passes.base import Example, ModelPass
from sardonyx.records.run import Accuracy

# Operator sets whose operators do nothing but compute their outputs.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft"})
Functions = Set[tuple[str, str]]


class EliminateDeadNodes(ModelPass):
    """Nodes none of whose outputs is read."""

    name = "eliminate-dead-nodes"
    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = Neg(x)  b = Exp(a)  y = Relu(x) }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y, int64[N, 1] index) {
                k = Constant <value = int64[1] {1}> ()
                top, index = TopK <axis = 1> (x, k)
                y = Relu(x)
            }
        """,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Users before makers, so that one walk finds all; whole chains at a time."""
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
            yield Refused("an operator of an unknown set may do more than compute its outputs", (node,))
        else:
            yield Proposal(Match(_with_makers(node, functions), outputs=()), lambda _: ())
    for nodes in constants.values():  # folding leaves thousands behind: one event a module
        yield Proposal(Match(tuple(reversed(nodes)), outputs=()), lambda _: ())


def _only_computes(node: ir.Node, functions: Functions) -> bool:
    return bool(node.outputs) and (node.domain in PURE_DOMAINS or (node.domain, node.op_type) in functions)


def _with_makers(node: ir.Node, functions: Functions) -> tuple[ir.Node, ...]:
    """The node after those that worked for it alone, each after its own makers."""
    chain: dict[ir.Node, None] = {node: None}
    edge = [node]
    while edge:
        for maker in edge.pop().predecessors():
            if maker in chain or maker.graph is not node.graph or not _only_computes(maker, functions):
                continue
            if not any(output.is_graph_output() for output in maker.outputs) and all(
                user in chain for output in maker.outputs for user in output.consumers()
            ):
                chain[maker] = None
                edge.append(maker)
    return tuple(reversed(chain))
