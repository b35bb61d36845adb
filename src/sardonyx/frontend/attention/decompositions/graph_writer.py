"""Writes the steps of an attention into a graph, each node with its role.

A symbolic trace consists of torch functions, an exported graph of aten overloads. The decomposition is written once
(`sdpa`) in terms of an operation table, so that both kinds of graph get the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct, field
from torch import fx

from sardonyx.frontend.attention.roles import Primitive, Role

Op = Callable[..., Any] | str  # a function, or the name of a method
Create = Callable[..., fx.Node]  # (kind, target, args, kwargs), as `create_node` of a graph and of a tracer take them


class OpTable(Struct, frozen=True):
    """The operations of a kind of graph. An operation takes the same arguments in every table."""

    matmul: Op
    transpose: Op
    mul: Op
    add: Op
    where: Op  # (condition, tensor, number)
    masked_fill: Op
    softmax: Op
    safe_softmax: Op  # rows that are -inf throughout become 0
    dropout: Op
    repeat_interleave: Op
    triu: Op
    new_ones: Op
    size: Op
    type_as: Op


_aten = torch.ops.aten

TORCH = OpTable(
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

ATEN = OpTable(
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


class AttentionWriter(Struct):
    """Writes one attention at a graph's insertion point."""

    create: Create
    ops: OpTable
    attention: int  # its number among the attentions of the model
    primitives: dict[str, Primitive]  # roles by node name; extended with every node
    module: str = ""  # its path, for error messages
    nodes: list[fx.Node] = field(default_factory=list[fx.Node])  # the written nodes in order

    @property
    def location(self) -> str:
        """The module's path for error messages."""
        return self.module or "the model"

    def write(self, role: Role | None, op: Op, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node; without a role if it only computes an argument of a step."""
        kind = "call_method" if isinstance(op, str) else "call_function"
        return self._record(role, self.create(kind, op, args, kwargs))

    def write_module(self, role: Role, target: str, argument: fx.Node) -> fx.Node:
        """Add a node that calls a submodule."""
        return self._record(role, self.create("call_module", target, (argument,), {}))

    def _record(self, role: Role | None, node: fx.Node) -> fx.Node:
        self.nodes.append(node)
        if role is not None:
            self.primitives[node.name] = Primitive(self.attention, role)
        return node
