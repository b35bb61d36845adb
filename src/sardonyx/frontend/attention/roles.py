"""What each primitive of an attention does in it, and what `decompose` tells of the attentions it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from torch import fx
from torch.fx.graph_module import (
    _USER_PRESERVED_ATTRIBUTES_KEY,  # pyright: ignore[reportPrivateUsage]  # what torch's `deepcopy` keeps
)

Road = Literal["symbolic-trace", "torch-export"]
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


@dataclass(frozen=True, slots=True)
class Primitive:
    """What a node of the graph is in its attention."""

    attention: int  # which one, counted from 0 in the order they run
    role: Role


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of the model."""

    module: str  # dotted path; a second call of the same module is marked: `block@1.attn`
    written_as: str  # "nn.MultiheadAttention", "scaled_dot_product_attention", "by hand"


@dataclass(frozen=True, slots=True)
class Decomposition:
    """How a model was taken apart; travels with the graph module, also through a file."""

    road: Road
    why: str  # why this road: "" for symbolic tracing, else what stopped it
    attentions: tuple[Attention, ...]
    primitives: Mapping[str, Primitive]  # by node name
    modules: Mapping[str, str] = field(default_factory=dict[str, str])  # node name -> module that ran it, every node
    opaque: tuple[str, ...] = ()  # functions that tracing could not look into and that may hide more


def attach(module: fx.GraphModule, decomposition: Decomposition) -> None:
    """Let the graph module carry it, also into its copies."""
    setattr(module, _ATTRIBUTE, decomposition)
    module.meta.setdefault(_USER_PRESERVED_ATTRIBUTES_KEY, {})[_ATTRIBUTE] = decomposition


def decomposition_of(module: Any) -> Decomposition | None:
    """What `decompose` said of this graph module, if it made it."""
    return getattr(module, _ATTRIBUTE, None)
