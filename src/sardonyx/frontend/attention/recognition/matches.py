"""Data classes of a recognized attention: its operands, its steps, or the reason why a softmax is not in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from torch import fx

from sardonyx.frontend.attention.roles import Role


class Scale(Struct, frozen=True, eq=False):
    """The scores are multiplied by a factor, or divided by it."""

    node: fx.Node
    factor: Any  # a number, or a node with a number or a tensor
    divides: bool = False


class Bias(Struct, frozen=True, eq=False):
    """A mask or a positional bias is added to the scores."""

    node: fx.Node
    term: Any  # a node, or a number
    times: float = 1.0
    as_sdpa: bool = False  # the term is a mask of scaled_dot_product_attention: added, or True keeps a score


class Fill(Struct, frozen=True, eq=False):
    """The scores are replaced by a value where a condition is true (or where it is false)."""

    node: fx.Node
    condition: fx.Node
    value: float
    where_true: bool


class Cast(Struct, frozen=True, eq=False):
    """The scores or weights are cast."""

    node: fx.Node
    dtype: Any  # a torch.dtype, or the node whose dtype it is


class Regroup(Struct, frozen=True, eq=False):
    """The axes before the last two are split or merged."""

    node: fx.Node


Step = Scale | Bias | Fill | Cast | Regroup


class Operand(Struct, frozen=True, eq=False):
    """An operand of a product, and how to permute its axes to (…, rows, features)."""

    node: fx.Node
    perm: tuple[int, ...] | None = None  # None: no permutation
    swap: bool = False  # whether to swap the last two axes afterwards


class Dropout(Struct, frozen=True, eq=False):
    """Dropout of the weights."""

    node: fx.Node
    p: float
    training: bool | None  # None: the mode of `module`
    module: str | None = None


class AttentionMatch(Struct, frozen=True, eq=False):
    """One attention: softmax(scale · query keyᵀ + mask) value."""

    query: Operand
    key: Operand
    value: Operand
    steps: tuple[Step, ...]  # from the scores to the softmax, in execution order
    softmax: fx.Node
    after: tuple[Step, ...]  # from the softmax to the product with the values: casts and regroupings
    dropout: Dropout | None
    scores: fx.Node  # the product of queries and keys
    mix: fx.Node  # the product of weights and values
    result_perm: tuple[int, ...] | None  # the permutation of (…, rows, features) to the axes of `mix`
    safe: bool  # a fully masked row gives zeros, not NaN
    roles: Mapping[fx.Node, Role]  # all nodes, including projections and the splitting and merging of heads
    core: tuple[fx.Node, ...]  # from `scores` to `mix`, in execution order
    read_elsewhere: tuple[fx.Node, ...]  # nodes of the core with uses outside, such as returned weights


class NotAttention(Struct, frozen=True, eq=False):
    """A softmax that is not in an attention, or not with certainty."""

    softmax: fx.Node
    reason: str
