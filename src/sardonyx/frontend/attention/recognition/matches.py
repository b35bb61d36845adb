"""What is told of an attention that was found in a graph, or of a softmax that turned out not to be in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from sardonyx.frontend.attention.roles import Role


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """The scores times a factor, or divided by it."""

    node: fx.Node
    factor: Any  # a number, or a node that gives a number or a tensor
    divides: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """Something is added to the scores: a mask, a bias of positions."""

    node: fx.Node
    term: Any  # a node, or a number
    times: float = 1.0
    as_sdpa: bool = False  # the term is a mask as scaled_dot_product_attention takes it: added, or where True kept


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """The scores are replaced by a value where a condition holds (or where it does not)."""

    node: fx.Node
    condition: fx.Node
    value: float
    where_true: bool


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """The scores or weights take another dtype."""

    node: fx.Node
    dtype: Any  # a torch.dtype, or the node whose dtype it is


@dataclass(frozen=True, slots=True, eq=False)
class Regroup:
    """The dims before the last two are split or merged; the last two stay."""

    node: fx.Node


Step = Scale | Bias | Fill | Cast | Regroup


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """What a product reads, and how its axes must be turned to be (…, rows, features)."""

    node: fx.Node
    turn: tuple[int, ...] | None = None  # a permutation; None: as it is
    swap: bool = False  # the last two axes change places


@dataclass(frozen=True, slots=True, eq=False)
class Dropout:
    """Dropout of the weights."""

    node: fx.Node
    p: float
    training: bool | None  # None: follows `module`
    module: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Recognised:
    """One attention: softmax(scale * query key' + mask) value."""

    query: Operand
    key: Operand
    value: Operand
    steps: tuple[Step, ...]  # from the scores to the softmax, in the order in which they run
    softmax: fx.Node
    after: tuple[Step, ...]  # from the softmax to the mix: casts and regroupings
    dropout: Dropout | None
    scores: fx.Node  # the first product
    mix: fx.Node  # the second
    result_turn: tuple[int, ...] | None  # how (…, rows, features) must be turned to be what `mix` gives
    safe: bool  # a row that is masked whole gives zeros, not NaN
    roles: Mapping[fx.Node, Role]  # every node of it, with its projections and its heads split and merged
    core: tuple[fx.Node, ...]  # from `scores` to `mix`, in the order in which they run
    read_elsewhere: tuple[fx.Node, ...]  # nodes of the core that something outside reads: returned weights


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A softmax that is not, or not provably, that of an attention."""

    softmax: fx.Node
    reason: str
