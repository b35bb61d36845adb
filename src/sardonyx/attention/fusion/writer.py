"""Writes the few nodes that fusing needs, in the words that the graph speaks, with what is known of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from sardonyx.attention.recognition.facts import EXAMPLE, rank_of, shape_of
from sardonyx.attention.recognition.vocabulary import vocabulary_of

WRITTEN_FOR = "sardonyx_written_for"  # the name of the node that a new one stands beside, while a graph is rewritten
_aten = torch.ops.aten
_WORDS: dict[str, tuple[Any, Any]] = {
    "sdpa": (F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default),
    "transpose": (torch.transpose, _aten.transpose.int),
    "permute": (torch.permute, _aten.permute.default),
    "reshape": (torch.reshape, _aten.reshape.default),
    "expand": ("expand", _aten.expand.default),
    "unsqueeze": (torch.unsqueeze, _aten.unsqueeze.default),
    "squeeze": (torch.squeeze, _aten.squeeze.dim),
    "mul": (torch.mul, _aten.mul.Tensor),
    "div": (torch.div, _aten.div.Tensor),
    "add": (torch.add, _aten.add.Tensor),
    "not": (torch.logical_not, _aten.logical_not.default),
    "and": (torch.logical_and, _aten.logical_and.default),
    "where": (torch.where, _aten.where.ScalarSelf),  # (condition, number, tensor)
    "type_as": ("type_as", _aten.type_as.default),
    "size": ("size", _aten.sym_size.int),
    "cat": (torch.cat, _aten.cat.default),
    "linear": (F.linear, _aten.linear.default),
    "split": (torch.split, _aten.split_with_sizes.default),
    "narrow": (torch.narrow, _aten.narrow.default),
}


class Writer:
    """Writes at one place of a graph."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        """Write before this node, as its kin."""
        self._graph, self._before = graph, before
        self._aten = vocabulary_of(graph) == "aten"

    def write(self, word: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Add one node."""
        target = _WORDS[word][self._aten]
        return self.call(target, *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node for any function."""
        with self._graph.inserting_before(self._before):
            kind = "call_method" if isinstance(target, str) else "call_function"
            node = self._graph.create_node(kind, target, args, kwargs)
        kept = ("nn_module_stack", "stack_trace", "source_fn_stack")
        node.meta = {key: self._before.meta[key] for key in kept if key in self._before.meta}
        node.meta[WRITTEN_FOR] = self._before.meta.get(WRITTEN_FOR, self._before.name)
        self._propagate(node)
        return node

    def _propagate(self, node: fx.Node) -> None:
        """Say what the node computes, where that is known of all that it reads."""
        for key in ("val", EXAMPLE):
            if not all(key in each.meta for each in node.all_input_nodes):
                continue
            values: Any = fx.map_arg((node.args, node.kwargs), lambda each, key=key: each.meta[key])
            modes = [leaf.fake_mode for leaf in tree_leaves(values) if hasattr(leaf, "fake_mode")]
            if modes:
                target = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
                with modes[0]:
                    node.meta[key] = target(*values[0], **values[1])

    def size(self, tensor: fx.Node, axis: int) -> Any:
        """The size as a number, or as a node that gives it."""
        shape = shape_of(tensor)
        fixed = shape is not None and isinstance(shape[axis], int) and (self._aten or tensor.op == "get_attr")
        return shape[axis] if shape is not None and fixed else self.write("size", tensor, axis)

    def regrouped(self, tensor: fx.Node, lead: Sequence[Any]) -> fx.Node:
        """The tensor with other dims before its last two."""
        return self.write("reshape", tensor, [*lead, self.size(tensor, -2), self.size(tensor, -1)])

    def at_least_matrix(self, tensor: fx.Node) -> fx.Node:
        """The tensor with two dims or more, broadcasting as it did."""
        rank = rank_of(tensor)
        if rank.least >= 2:
            return tensor
        if not rank.exact:
            return self.call(getattr(torch, "atleast_2d"), tensor)  # noqa: B009  # torch leaves it untyped
        for _ in range(2 - rank.least):
            tensor = self.write("unsqueeze", tensor, 0)
        return tensor
