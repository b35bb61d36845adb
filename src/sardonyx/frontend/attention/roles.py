"""What is known of an attention in a graph: the roles of the nodes of a decomposition, and the parts of a match."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field
from torch import fx
from torch.fx.graph_module import (
    _USER_PRESERVED_ATTRIBUTES_KEY,  # pyright: ignore[reportPrivateUsage]  # what torch's `deepcopy` keeps
)

Method = Literal["symbolic-trace", "torch-export"]
_ATTRIBUTE = "sardonyx_decomposition"  # a plain attribute: torch drops `meta` when a graph module is serialised


class Role(StrEnum):
    """The steps of an attention."""

    PROJECT_Q = "project-q"
    PROJECT_K = "project-k"
    PROJECT_V = "project-v"
    SPLIT_HEADS = "split-heads"
    SCORES = "scores"
    SCALE = "scale"
    MASK = "mask"
    SOFTMAX = "softmax"
    DROPOUT = "dropout"
    MIX = "mix"
    MERGE_HEADS = "merge-heads"
    PROJECT_OUT = "project-out"


class Primitive(Struct, frozen=True):
    """The role of a node in its attention."""

    attention: int  # index in execution order
    role: Role


class Attention(Struct, frozen=True):
    """One attention of the model."""

    module: str  # dotted path; later calls of the same module have a number: `block@1.attn`
    written_as: str  # "nn.MultiheadAttention", "scaled_dot_product_attention", "by hand"


class Decomposition(Struct, frozen=True):
    """How a model was decomposed; stored in the graph module, also when pickled."""

    method: Method
    why: str  # why symbolic tracing was not used; empty if it was
    attentions: tuple[Attention, ...]
    primitives: Mapping[str, Primitive]  # by node name
    modules: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # node name -> path of its module, for every node
    opaque: tuple[str, ...] = ()  # functions that could not be traced into and may contain attentions


def attach(module: fx.GraphModule, decomposition: Decomposition) -> None:
    """Attach the decomposition to a graph module."""
    set_attribute(module, _ATTRIBUTE, decomposition)


def set_attribute(module: fx.GraphModule, name: str, value: Any) -> None:
    """Set an attribute of a graph module that its copies have too."""
    setattr(module, name, value)
    module.meta.setdefault(_USER_PRESERVED_ATTRIBUTES_KEY, {})[name] = value


def decomposition_of(module: Any) -> Decomposition | None:
    """Return the decomposition of a graph module from `decompose`, or None."""
    return getattr(module, _ATTRIBUTE, None)


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
