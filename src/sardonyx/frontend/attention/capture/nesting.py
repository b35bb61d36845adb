"""What a value is but for its tensors: how it is nested, and every part of it that is no tensor.

Arguments and results of a model come in tuples, dicts, dataclasses and caches, a graph has tensors. Unlike torch's own
description this one goes through a file, needs no class to be registered, and knows caches by their looks.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from sardonyx.errors import UsageError
from sardonyx.frontend.tracing.cache import join_cache, split_cache

_DECOMPOSE_AGAIN = "decompose the model again for this call"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Something that is no tensor and holds none."""

    value: Any


@dataclass(frozen=True, slots=True)
class Nest:
    """Parts in a container, by the keys that the container has for them."""

    kind: type[Any]
    keys: tuple[Any, ...]
    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of so many layers; `template` is the cache without them."""

    template: Any
    layers: int


@dataclass(frozen=True, slots=True)
class Holder:
    """An object with caches among its attributes; `template` is the object without them."""

    template: Any
    caches: Mapping[str, Cache]


Shape = Leaf | Fixed | Nest | Cache | Holder
PLAIN = (bool, int, float, str, type(None))  # what can stand in a graph and in a signature as it is
_PLAIN_MAPPINGS: tuple[Any, ...] = (dict, OrderedDict)
_SEQUENCES: tuple[Any, ...] = (tuple, list)
_LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat)  # a size that is left open is computed like a tensor


def shape_of(value: Any) -> Shape:
    """How a value is nested."""
    if isinstance(value, _LEAVES):
        return Leaf()
    if (pairs := split_cache(value)) is not None:
        return Cache(_emptied(value), len(pairs))
    items = _items(value)
    if items is not None:
        return Nest(_kind(value), tuple(items), tuple(shape_of(item) for item in items.values()))
    caches = {
        name: cache for name in getattr(value, "__dict__", {}) if isinstance(cache := _cache_at(value, name), Cache)
    }
    return Holder(_without(value, caches), caches) if caches else Fixed(value)


def unknown_in(shape: Shape) -> type[Any] | None:
    """A kind of object in it that may hold tensors, for all we know."""
    if isinstance(shape, Nest):
        return next((found for part in shape.parts if (found := unknown_in(part)) is not None), None)
    return _kind(shape.value) if isinstance(shape, Fixed) and not isinstance(shape.value, PLAIN) else None


def tensors_in(shape: Shape, value: Any, name: str) -> list[torch.Tensor]:
    """The tensors of a value that must be nested like the one before.

    Raises:
        UsageError: it is another kind of value, or has something else where no tensor is.
    """
    if isinstance(shape, Fixed):
        if value is not shape.value and (isinstance(value, torch.Tensor) or value != shape.value):
            raise UsageError(f"{name} is fixed at {shape.value!r} in this graph", hint=_DECOMPOSE_AGAIN)
        return []
    if isinstance(shape, Leaf):
        if not isinstance(value, _LEAVES):
            raise UsageError(f"{name} must be a tensor, not {type(value).__name__}", hint=_DECOMPOSE_AGAIN)
        return [cast(torch.Tensor, value)]
    if isinstance(shape, Cache):
        pairs = split_cache(value) or []
        if len(pairs) != shape.layers:
            raise UsageError(f"{name} must be a cache of {shape.layers} layers", hint=_DECOMPOSE_AGAIN)
        return [tensor for pair in pairs for tensor in pair]
    parts = _parts(shape, value, name)
    return [tensor for key, part, inner in parts for tensor in tensors_in(part, inner, f"{name}.{key}")]


def _parts(shape: Nest | Holder, value: Any, name: str) -> list[tuple[Any, Shape, Any]]:
    """The parts of a container with their keys, and what the value has there."""
    kind = shape.kind if isinstance(shape, Nest) else _kind(shape.template)
    if type(value) is not kind:
        raise UsageError(f"{name} must be a {kind.__name__}, not {type(value).__name__}", hint=_DECOMPOSE_AGAIN)
    if isinstance(shape, Holder):
        return [(key, cache, getattr(value, key)) for key, cache in shape.caches.items()]
    items = _items(value) or {}
    if tuple(items) != shape.keys:
        raise UsageError(f"{name} must hold {list(shape.keys)}, not {list(items)}", hint=_DECOMPOSE_AGAIN)
    return [(key, part, items[key]) for key, part in zip(shape.keys, shape.parts, strict=True)]


def names_in(shape: Shape, name: str) -> Iterator[str]:
    """What the tensors are called."""
    if isinstance(shape, Leaf):
        yield name
    elif isinstance(shape, Cache):
        yield from (f"{name}.{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value"))
    elif isinstance(shape, Nest):
        for key, part in zip(shape.keys, shape.parts, strict=True):
            yield from names_in(part, f"{name}.{key}")
    elif isinstance(shape, Holder):
        for key, cache in shape.caches.items():
            yield from names_in(cache, f"{name}.{key}")


def rebuilt(shape: Shape, tensors: Iterator[Any]) -> Any:
    """A value of this shape with the next tensors in it."""
    if isinstance(shape, Fixed):
        return shape.value
    if isinstance(shape, Leaf):
        return next(tensors)
    if isinstance(shape, Cache):
        return join_cache(shape.template, [(next(tensors), next(tensors)) for _ in range(shape.layers)])
    if isinstance(shape, Holder):
        fresh = copy.copy(shape.template)
        for key, cache in shape.caches.items():
            setattr(fresh, key, rebuilt(cache, tensors))
        return fresh
    items = {key: rebuilt(part, tensors) for key, part in zip(shape.keys, shape.parts, strict=True)}
    kind: Any = shape.kind
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*items.values())
    if issubclass(shape.kind, _SEQUENCES):
        return kind(items.values())
    return kind(items) if kind in _PLAIN_MAPPINGS else kind(**items)


def is_plain(shape: Shape) -> bool:
    """Whether a graph can return it by itself: tuples, lists, dicts, tensors and numbers."""
    if isinstance(shape, Nest):
        return shape.kind in (tuple, list, dict) and all(is_plain(part) for part in shape.parts)
    return isinstance(shape, Leaf) or (isinstance(shape, Fixed) and isinstance(shape.value, PLAIN))


def _items(value: Any) -> dict[Any, Any] | None:
    """The parts of a container by key; None for what is none."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (tuple, list)):
        return dict(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _emptied(cache: Any) -> Any:
    """A cache like this one that holds no tensors."""
    layers = [copy.copy(layer) for layer in cache.layers]
    for layer in layers:
        layer.keys = layer.values = None
    empty = copy.copy(cache)
    empty.layers = layers
    return empty


def _cache_at(value: Any, name: str) -> Shape | None:
    held = getattr(value, name)
    pairs = split_cache(held)
    return None if pairs is None else Cache(_emptied(held), len(pairs))


def _without(value: Any, caches: Mapping[str, Cache]) -> Any:
    fresh = copy.copy(value)
    for name in caches:
        setattr(fresh, name, None)
    return fresh


def _kind(value: Any) -> type[Any]:
    return value.__class__
