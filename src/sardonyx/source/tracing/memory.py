"""Which nodes of an exported graph share memory, so that a write in place can become a new value."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

_UNDECLARED = torch.Tag.maybe_aliasing_or_mutating


class NotLocalError(Exception):
    """Something that only a trace of the whole program takes apart."""


def is_overload(target: object) -> bool:
    """Whether a node calls an operator of torch."""
    return isinstance(target, torch._ops.OpOverload)  # pyright: ignore[reportPrivateUsage]  # has no public name


class Memory:
    """What is known of the nodes seen so far.

    A node owns its memory where an operator made it anew. Once a view of it was taken, a write could be seen through
    the view, and nothing more is known of it.
    """

    def __init__(self) -> None:
        self._owners: dict[Any, Any] = {}  # a node, or what was written into its memory -> that node
        self._shared: set[Any] = set()

    @staticmethod
    def check(graph: Graph) -> None:
        """Look at a whole graph.

        Raises:
            NotLocalError: It writes to memory that something else may look at.
        """
        memory = Memory()
        for node in graph.nodes:
            if is_overload(node.target):
                memory.see(node)
                memory.without_writing(node)
            elif node.op == "call_function":
                memory._shared.update(node.all_input_nodes)

    def see(self, node: Any) -> None:
        """Take note of a node that calls an operator of torch; each once, in order."""
        schema = _schema(node)
        if schema.is_mutable:
            owner = self._owners.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
            if owner is not None:
                self._owners[node] = owner
        elif _may_alias(node.target):
            self._shared.update(self._owners.get(each, each) for each in node.all_input_nodes)
        else:
            self._owners[node] = node

    def without_writing(self, node: Any) -> Any:
        """The operator that computes what the node writes; None for a node that writes nothing.

        Raises:
            NotLocalError: Something else may look at the memory, or there is no such operator.
        """
        schema = _schema(node)
        if not schema.is_mutable:
            return None
        owner, target = self._owners.get(node), node.target
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
        instead = getattr(packet, target._overloadname, None)
        written = [each for each in schema.arguments if each.alias_info is not None]
        if owner is None or owner in self._shared or instead is None or written != [schema.arguments[0]]:
            raise NotLocalError
        if _may_alias(instead):
            raise NotLocalError
        return instead

    def written(self, node: Any) -> list[Any]:
        """All nodes whose memory a node has written to."""
        if not is_overload(node.target) or not _schema(node).is_mutable:
            return []
        owner = self._owners[node]
        return [each for each, its in self._owners.items() if its is owner]


def _schema(node: Any) -> Any:
    target: Any = node.target
    return target._schema


def _may_alias(target: Any) -> bool:
    """Whether a result may be memory of an operand; some operators do not declare it, as dropout that drops nothing."""
    values = (*target._schema.arguments, *target._schema.returns)
    return any(each.alias_info is not None for each in values) or _UNDECLARED in target.tags
