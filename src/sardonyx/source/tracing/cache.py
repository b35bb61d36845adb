"""Key-value caches as flat tensors.

A cache is known by its looks: an object with `layers`, each with `keys` and `values`. No library is named and none is
imported.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

Pair = tuple[Tensor, Tensor]


def split_cache(value: object) -> list[Pair] | None:
    """The keys and values of every layer of a cache; None for anything that is no cache, or an empty one."""
    layers = getattr(value, "layers", None)
    if not isinstance(layers, Sequence) or isinstance(value, Tensor):
        return None
    pairs: list[Pair] = []
    for layer in cast("Sequence[Any]", layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
            return None
        pairs.append((keys, values))
    return pairs or None


def join_cache(template: object, pairs: Sequence[Pair]) -> object:
    """A new cache like `template` with other contents: modules write into theirs, so every call needs its own."""
    fresh = cast("Any", copy.copy(template))
    layers = [copy.copy(layer) for layer in fresh.layers]
    for layer, (keys, values) in zip(layers, pairs, strict=True):
        layer.keys, layer.values = keys, values
    fresh.layers = layers
    return fresh
