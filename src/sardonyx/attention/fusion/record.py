"""What `fuse_attention` tells of what it did and of what it left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.graph_module import (
    _USER_PRESERVED_ATTRIBUTES_KEY,  # pyright: ignore[reportPrivateUsage]  # what torch's `deepcopy` keeps
)

_ATTRIBUTE = "sardonyx_fusion"  # a plain attribute: torch drops `meta` when a graph module is serialised


@dataclass(frozen=True, slots=True)
class Fused:
    """An attention that is one call now."""

    node: str  # of scaled_dot_product_attention, in the new graph
    softmax: str  # the node it had in the graph that was given
    notes: tuple[str, ...] = ()  # where it may differ from what it replaces


@dataclass(frozen=True, slots=True)
class Unfused:
    """A softmax that was left as it is."""

    softmax: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """Everything that was done; travels with the graph module, also through a file."""

    fused: tuple[Fused, ...]
    refused: tuple[Unfused, ...]
    packed: tuple[tuple[str, ...], ...] = ()  # names of the projections that became one, in the graph that was given


def attach(module: fx.GraphModule, fusion: Fusion) -> None:
    """Let the graph module carry it, also into its copies."""
    setattr(module, _ATTRIBUTE, fusion)
    module.meta.setdefault(_USER_PRESERVED_ATTRIBUTES_KEY, {})[_ATTRIBUTE] = fusion


def fusion_of(module: Any) -> Fusion | None:
    """What `fuse_attention` said of this graph module, if it made it."""
    return getattr(module, _ATTRIBUTE, None)
