"""Key-value caches as flat tensors.

A cache is recognized by its structure: an object with `layers`, each with `keys` and `values`; or an object with two of
these, for self-attention and cross-attention. No library is imported.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

Pair = tuple[Tensor, Tensor]
_SELF, _CROSS = "self_attention_cache", "cross_attention_cache"


def split_cache(value: object) -> list[Pair] | None:
    """Return the keys and values of every layer of a cache; None for other objects and for an empty cache."""
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
    """Return a new cache like `template` with other contents: modules write into it, so every call needs its own."""
    fresh = cast("Any", copy.copy(template))
    layers = [copy.copy(layer) for layer in fresh.layers]
    for layer, (keys, values) in zip(layers, pairs, strict=True):
        layer.keys, layer.values = keys, values
    fresh.layers = layers
    return fresh


def named_pairs(value: object) -> dict[str, Pair] | None:
    """Return the keys and values of a cache by layer; None for anything but a filled cache.

    Layers are named `0`, or `0.decoder` and `0.encoder` if the cache has a part for cross-attention.
    """
    own, cross = split_cache(getattr(value, _SELF, value)), split_cache(getattr(value, _CROSS, None))
    if own is None:
        return None
    if not hasattr(value, _CROSS):
        return {str(layer): pair for layer, pair in enumerate(own)}
    if cross is None:
        return None
    both = enumerate(zip(own, cross, strict=True))
    return {
        f"{layer}.{part}": pair
        for layer, pairs in both
        for part, pair in zip(("decoder", "encoder"), pairs, strict=True)
    }


def with_pairs(template: object, pairs: Sequence[Pair]) -> object:
    """Return a new cache like `template` with other contents, in the order of `named_pairs`."""
    if not hasattr(template, _CROSS):
        return join_cache(template, pairs)
    fresh = cast("Any", copy.copy(template))
    setattr(fresh, _SELF, join_cache(getattr(template, _SELF), pairs[::2]))
    setattr(fresh, _CROSS, join_cache(getattr(template, _CROSS), pairs[1::2]))
    if hasattr(fresh, "is_updated"):  # whether each layer's cross-attention is cached; modules write into it
        fresh.is_updated = dict(fresh.is_updated)
    return fresh


def windows(cache: object) -> list[int]:
    """Return the sizes of the sliding windows in the cache; layers that keep every position have none."""
    layers: Any = getattr(getattr(cache, _SELF, cache), "layers", ())
    sizes = [getattr(layer, "sliding_window", None) for layer in layers if getattr(layer, "is_sliding", False)]
    return [size for size in sizes if isinstance(size, int)]


def window(cache: object) -> int | None:
    """Return the shortest sliding window in the cache; None if all layers keep every position."""
    return min(windows(cache), default=None)


def keeping_all(cache: object) -> object:
    """Return an empty cache of the same class whose layers keep every position.

    The sliding window is then applied by the mask alone, which does not change results, and the length of the past is
    the length of its tensors.
    """
    kind: Any = type(cache)
    if not hasattr(cache, _CROSS):
        return kind()
    return kind(*(keeping_all(getattr(cache, part)) for part in (_SELF, _CROSS)))
