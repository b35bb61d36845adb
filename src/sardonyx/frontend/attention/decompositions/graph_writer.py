"""Writes the steps of an attention into a graph: each node with its role, in the words that the graph already speaks.

A symbolic trace speaks torch functions, an exported graph speaks aten overloads. The expansion itself is written once
(`sdpa`) and asks for words, so that the two roads cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from sardonyx.frontend.attention.roles import Primitive, Role

Word = Callable[..., Any] | str  # a function, or the name of a method
Create = Callable[..., fx.Node]  # (kind, target, args, kwargs), as `create_node` of a graph and of a tracer take them


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the steps are called. A word takes the same arguments in every vocabulary."""

    matmul: Word
    transpose: Word
    mul: Word
    add: Word
    where: Word  # (condition, tensor, number)
    masked_fill: Word
    softmax: Word
    safe_softmax: Word  # rows that are -inf throughout become 0
    dropout: Word
    repeat_interleave: Word
    triu: Word
    new_ones: Word
    size: Word
    type_as: Word


_aten = torch.ops.aten

TORCH = Vocabulary(
    matmul=torch.matmul,
    transpose=torch.transpose,
    mul=torch.mul,
    add=torch.add,
    where=torch.where,
    masked_fill=torch.masked_fill,
    softmax=torch.softmax,
    safe_softmax=_aten._safe_softmax.default,  # torch's function of this name stops torch.compile
    dropout=torch.dropout,
    repeat_interleave=torch.repeat_interleave,
    triu=torch.triu,
    new_ones="new_ones",
    size="size",
    type_as="type_as",
)

ATEN = Vocabulary(
    matmul=_aten.matmul.default,
    transpose=_aten.transpose.int,
    mul=_aten.mul.Tensor,
    add=_aten.add.Tensor,
    where=_aten.where.ScalarOther,
    masked_fill=_aten.masked_fill.Scalar,
    softmax=_aten.softmax.int,
    safe_softmax=_aten._safe_softmax.default,
    dropout=_aten.dropout.default,
    repeat_interleave=_aten.repeat_interleave.self_int,
    triu=_aten.triu.default,
    new_ones=_aten.new_ones.default,
    size=_aten.sym_size.int,
    type_as=_aten.type_as.default,
)


@dataclass(slots=True)
class Spelling:
    """One attention being written at a graph's point of insertion."""

    create: Create
    words: Vocabulary
    attention: int  # its number among the attentions of the model
    primitives: dict[str, Primitive]  # by node name: what the nodes are in their attention is noted here
    module: str = ""  # where it is, for refusals
    nodes: list[fx.Node] = field(default_factory=list[fx.Node])  # what was written, in order

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return self.module or "the model"

    def write(self, role: Role | None, word: Word, *args: Any, **kwargs: Any) -> fx.Node:
        """Add one step; without a role it only prepares an argument of one."""
        kind = "call_method" if isinstance(word, str) else "call_function"
        return self._noted(role, self.create(kind, word, args, kwargs))

    def write_module(self, role: Role, target: str, argument: fx.Node) -> fx.Node:
        """Add a step that a submodule does."""
        return self._noted(role, self.create("call_module", target, (argument,), {}))

    def _noted(self, role: Role | None, node: fx.Node) -> fx.Node:
        self.nodes.append(node)
        if role is not None:
            self.primitives[node.name] = Primitive(self.attention, role)
        return node
