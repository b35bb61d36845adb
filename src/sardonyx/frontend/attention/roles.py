"""Roles of primitive operations in an attention, and the record that `decompose` attaches to its graph modules."""

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
