"""Flattens nested values to named tensors and rebuilds them.

A graph has a flat list of named tensors; a forward has tuples, dicts, dataclasses and caches. A `Shape` has everything
about a value except its tensors, as plain data.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from msgspec import Struct
from torch import Tensor

# A key-value cache is recognized by its structure: an object with `layers`, each with `keys` and `values`; or an object
# with two of these, for self-attention and cross-attention. No library is imported.

Pair = tuple[Tensor, Tensor]
SIZES = (torch.SymInt, torch.SymFloat)
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


def join_cache(template: object, pairs: Sequence[Pair | tuple[None, None]]) -> object:
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


def with_pairs(template: object, pairs: Sequence[Pair | tuple[None, None]]) -> object:
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


_CONSTANT = (bool, int, float, str)


class Leaf(Struct, frozen=True):
    """A tensor, or complex numbers as pairs of real ones along a new last axis."""

    is_complex: bool = False


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
    layers: tuple[str, ...]


Shape = Leaf | Fixed | Nest | Cache


class NamedTensor(Struct, frozen=True):
    """A tensor inside a value, and its name."""

    name: str
    tensor: Tensor


class Flat:
    """A flattened value: its named tensors, and how to rebuild it with others.

    Args:
        value: Any value.
        name: The prefix of its tensors' names.
        in_torch: Flatten for a graph of torch: sizes are computed like tensors, and complex numbers stay.
    """

    def __init__(self, value: object, name: str = "", *, in_torch: bool = False) -> None:
        self.leaves: list[NamedTensor] = []
        self.others: list[tuple[str, object]] = []  # names and values of what is neither a tensor nor None
        self._in_torch = in_torch
        self.shape = self._flatten(value, name)

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in order."""
        return [leaf.name for leaf in self.leaves]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in order."""
        return [leaf.tensor for leaf in self.leaves]

    def rebuilt(self, tensors: Sequence[Tensor]) -> Any:
        """Return the value with other tensors in it."""
        return rebuilt(self.shape, iter(tensors))

    def _flatten(self, value: Any, name: str) -> Shape:
        if isinstance(value, Tensor):
            is_pair = not self._in_torch and value.is_complex() and value.layout is torch.strided
            tensor = torch.view_as_real(value.resolve_conj()) if is_pair else value
            self.leaves.append(NamedTensor(name or "output", tensor))
            return Leaf(is_pair)
        if self._in_torch and isinstance(value, SIZES):
            self.leaves.append(NamedTensor(name, cast("Tensor", value)))
            return Leaf()
        if (pairs := named_pairs(value)) is not None:
            for layer, (keys, values) in pairs.items():
                self.leaves += [NamedTensor(f"{name}.{layer}.key", keys), NamedTensor(f"{name}.{layer}.value", values)]
            return Cache(with_pairs(value, [(None, None)] * len(pairs)), tuple(pairs))
        if (items := items_of(value)) is not None:
            parts = (self._flatten(item, f"{name}.{key}" if name else str(key)) for key, item in items.items())
            return Nest(value.__class__, tuple(items), tuple(parts))
        if value is not None:
            self.others.append((name, value))
        return Fixed(value)


def items_of(value: Any) -> dict[Any, Any] | None:
    """Return the items of a container by key; None for other values."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (tuple, list)):
        items = cast("Sequence[Any]", value)
        return dict(zip(getattr(items, "_fields", range(len(items))), items, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuilt(shape: Shape, tensors: Iterator[Any]) -> Any:
    """Build a value of this structure from the next tensors."""
    if isinstance(shape, Fixed):
        return shape.value
    if isinstance(shape, Leaf):
        return torch.view_as_complex(next(tensors)) if shape.is_complex else next(tensors)
    if isinstance(shape, Cache):
        return with_pairs(shape.template, [(next(tensors), next(tensors)) for _ in shape.layers])
    kind: Any = shape.kind
    parts = [rebuilt(part, tensors) for part in shape.parts]
    if issubclass(shape.kind, (tuple, list)):
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    items = dict(zip(shape.keys, parts, strict=True))
    return kind(items) if shape.kind in (dict, OrderedDict) else kind(**items)


def fixed_arguments(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return the numbers, strings and switches in the arguments of a forward by name, then its defaults of these types.

    An exporter writes them into the graph as constants. Given arguments that are None count too.
    """
    named = named_arguments(module, args, kwargs)
    fixed = {name: value for name, value in Flat(named).others if isinstance(value, _CONSTANT)}
    fixed |= {name: None for name, value in named.items() if value is None}
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.name not in named and isinstance(parameter.default, _CONSTANT):
            fixed[parameter.name] = parameter.default
    return fixed


def named_arguments(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return positional and keyword arguments by parameter name of the module's forward, in call order."""
    parameters = inspect.signature(module.forward).parameters.values()
    named: dict[str, Any] = {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    for index, value in enumerate(args):
        name = positional[index].name if index < len(positional) else f"{rest}_{index - len(positional)}"
        named[name] = value
    return named | dict(kwargs)
