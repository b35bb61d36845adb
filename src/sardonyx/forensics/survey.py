"""One look over a whole graph that the detectors share: its nodes by operator, and what in it depends on no input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from sardonyx.graph.facts import RANDOM, Facts
from sardonyx.graph.scopes import bodies, is_constant

Finding = tuple[ir.Node, ...]  # the nodes of one place where a pattern is, in the order of the data


class Survey:
    """Every node of a model, bodies of control flow included, and what detectors ask about it."""

    def __init__(self, facts: Facts) -> None:
        """A survey of the model as it is now; it does not follow later changes."""
        self.facts = facts
        self.nodes = [node for scope in facts.live_scopes() for node in scope.graph if not is_constant(node)]
        self._by_type: dict[str, list[ir.Node]] = defaultdict(list)
        self._fixed: set[ir.Node] = set()
        for node in self.nodes:
            self._by_type[node.op_type].append(node)
            if self._is_fixed(node):
                self._fixed.add(node)

    def of(self, *op_types: str) -> Iterator[ir.Node]:
        """The nodes of standard operators, the operators in the order given."""
        return (node for op_type in op_types for node in self._by_type[op_type] if not node.domain)

    def named(self, *op_types: str) -> Iterator[ir.Node]:
        """The nodes of operators of that name, whatever their domain."""
        return (node for op_type in op_types for node in self._by_type[op_type])

    def fixed(self, value: ir.Value | None) -> bool:
        """Whether a value is the same in every run: a constant, or computed from nothing else."""
        if value is None:
            return False
        return value.producer() in self._fixed or self.facts.tensor(value) is not None

    def fixed_nodes(self) -> Collection[ir.Node]:
        """The nodes that compute the same in every run."""
        return self._fixed

    def _is_fixed(self, node: ir.Node) -> bool:
        if not node.inputs or node.op_type in RANDOM or any(True for _ in bodies(node)):
            return False
        return all(value is None or self.fixed(value) for value in node.inputs)

    def maker(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """The node that makes a value, where it is one of these standard operators."""
        node = None if value is None else value.producer()
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def user(self, node: ir.Node | None, *op_types: str) -> ir.Node | None:
        """The one node that reads the first result of a node, where it is one of these standard operators."""
        found = None if node is None else self.facts.sole_user(node.outputs[0])
        return found if found is not None and not found.domain and found.op_type in op_types else None

    def users(self, node: ir.Node, *op_types: str) -> list[ir.Node]:
        """The nodes of these standard operators that read the first result of a node, in the same graph."""
        found = dict.fromkeys(use.node for use in node.outputs[0].uses())
        return [each for each in found if not each.domain and each.op_type in op_types and each.graph is node.graph]

    def above(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """The value that nodes of these operators were handed first, through any number of them."""
        while (node := self.maker(value, *op_types)) is not None:
            value = node.inputs[0]
        return value

    def chains(self, nodes: Iterable[ir.Node]) -> Iterator[Finding]:
        """Runs of two or more such nodes, each the only reader of the one before."""
        follows = {node: self._follower(node) for node in nodes}
        inside = {after for after in follows.values() if after in follows}
        for first in follows:
            if first in inside:
                continue
            run: list[ir.Node] = [first]
            while (after := follows[run[-1]]) is not None and after in follows:
                run.append(after)
            if len(run) > 1:
                yield tuple(run)

    def _follower(self, node: ir.Node) -> ir.Node | None:
        """The one node that reads the result, as its data and not as a size or another parameter."""
        after = self.facts.sole_user(node.outputs[0])
        return after if after is not None and after.inputs[0] is node.outputs[0] else None
