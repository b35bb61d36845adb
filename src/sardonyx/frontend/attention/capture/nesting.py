"""Describes the structure of a value without its tensors.

Arguments and results of a model are nested in tuples, dicts, dataclasses and caches; a graph has tensors only. Unlike
torch's pytree specifications, these descriptions can be pickled, need no registered classes, and recognize caches by
structure.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.frontend.tracing.structure import join_cache, split_cache

_DECOMPOSE_AGAIN = "decompose the model again for this call"


class Leaf(Struct, frozen=True):
    """A tensor."""


class Fixed(Struct, frozen=True):
    """A value without tensors."""

    value: Any


class Nest(Struct, frozen=True):
    """A container with its keys and the structures of its items."""

    kind: type[Any]
    keys: tuple[Any, ...]
    parts: tuple[Shape, ...]


class Cache(Struct, frozen=True):
    """A cache of keys and values; `template` is the cache without tensors."""

    template: Any
    layers: int


class Holder(Struct, frozen=True):
    """An object with caches as attributes; `template` is the object without them."""

    template: Any
    caches: Mapping[str, Cache]


Shape = Leaf | Fixed | Nest | Cache | Holder
PLAIN = (bool, int, float, str, type(None))  # types of constants in a graph and in a signature
_PLAIN_MAPPINGS: tuple[Any, ...] = (dict, OrderedDict)
_SEQUENCES: tuple[Any, ...] = (tuple, list)
_LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat)  # dynamic sizes are computed like tensors


def shape_of(value: Any) -> Shape:
    """Return the structure of a value."""
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
    """Return a class in the structure that may contain tensors, or None."""
    if isinstance(shape, Nest):
        return next((kind for part in shape.parts if (kind := unknown_in(part)) is not None), None)
    return _kind(shape.value) if isinstance(shape, Fixed) and not isinstance(shape.value, PLAIN) else None


def tensors_in(shape: Shape, value: Any, name: str) -> list[torch.Tensor]:
    """Return the tensors of a value, which must have this structure.

    Raises:
        UsageError: If it has another structure, or another value for a fixed one.
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
    """Return the key, structure and value of each item of a container."""
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
    """Yield the names of the tensors."""
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
    """Build a value of this structure from the next tensors."""
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
    """Return whether a graph can return the structure: tuples, lists, dicts, tensors and numbers."""
    if isinstance(shape, Nest):
        return shape.kind in (tuple, list, dict) and all(is_plain(part) for part in shape.parts)
    return isinstance(shape, Leaf) or (isinstance(shape, Fixed) and isinstance(shape.value, PLAIN))


def _items(value: Any) -> dict[Any, Any] | None:
    """Return the items of a container by key; None for other values."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (tuple, list)):
        return dict(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _emptied(cache: Any) -> Any:
    """Return a copy of a cache without tensors."""
    layers = [copy.copy(layer) for layer in cache.layers]
    for layer in layers:
        layer.keys = layer.values = None
    empty = copy.copy(cache)
    empty.layers = layers
    return empty


def _cache_at(value: Any, name: str) -> Shape | None:
    attribute = getattr(value, name)
    pairs = split_cache(attribute)
    return None if pairs is None else Cache(_emptied(attribute), len(pairs))


def _without(value: Any, caches: Mapping[str, Cache]) -> Any:
    fresh = copy.copy(value)
    for name in caches:
        setattr(fresh, name, None)
    return fresh


def _kind(value: Any) -> type[Any]:
    return value.__class__
