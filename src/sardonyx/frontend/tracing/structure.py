"""Flattens nested values to named tensors and rebuilds them.

An ONNX graph has a flat list of named tensors; a forward has tuples, dicts, dataclasses and caches. A `Flat` remembers
everything about a value except its tensors. Complex numbers become pairs of real ones along a new last axis.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from msgspec import Struct
from torch import Tensor

# A key-value cache is recognized by its structure: an object with `layers`, each with `keys` and `values`; or an object
# with two of these, for self-attention and cross-attention. No library is imported.

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


_CONSTANT = (bool, int, float, str)
Rebuild: TypeAlias = "Callable[[Iterator[torch.Tensor]], Any]"


class Leaf(Struct, frozen=True):
    """A tensor inside a value, and its name."""

    name: str
    tensor: torch.Tensor


class Flat:
    """A flattened value: its named tensors, and how to rebuild it with others."""

    def __init__(self, value: object, name: str = "") -> None:
        """Flatten a value; `name` is the prefix of its tensors' names."""
        self.leaves: list[Leaf] = []
        self.others: list[tuple[str, object]] = []  # names and values of what is neither a tensor nor None
        self._rebuild = self._flatten(value, name)

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in order."""
        return [leaf.name for leaf in self.leaves]

    def rebuilt(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the value with other tensors in it."""
        return self._rebuild(iter(tensors))

    def _flatten(self, value: object, name: str) -> Rebuild:
        if isinstance(value, torch.Tensor) and value.is_complex() and value.layout is torch.strided:
            self.leaves.append(Leaf(name or "output", torch.view_as_real(value.resolve_conj())))
            return lambda tensors: torch.view_as_complex(next(tensors))
        if isinstance(value, torch.Tensor):
            self.leaves.append(Leaf(name or "output", value))
            return next
        if (pairs := named_pairs(value)) is not None:
            for layer, (keys, values) in pairs.items():
                self.leaves += [Leaf(f"{name}.{layer}.key", keys), Leaf(f"{name}.{layer}.value", values)]
            return lambda tensors: with_pairs(value, [(next(tensors), next(tensors)) for _ in pairs])
        fields: Sequence[Any] | None = getattr(value, "_fields", None)  # of a named tuple
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, object]", value)
        elif isinstance(value, (tuple, list)):
            listed = cast("Sequence[object]", value)
            items = dict(enumerate(listed) if fields is None else zip(fields, listed, strict=True))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            if value is not None:
                self.others.append((name, value))
            return lambda _tensors: value
        kind: Any = cast(Any, value).__class__
        rebuilds = {key: self._flatten(item, f"{name}.{key}" if name else str(key)) for key, item in items.items()}

        def rebuild(tensors: Iterator[torch.Tensor]) -> Any:
            parts: dict[Any, Any] = {key: rebuild(tensors) for key, rebuild in rebuilds.items()}
            if isinstance(value, (tuple, list)):
                return kind([*parts.values()]) if fields is None else kind(*parts.values())
            return parts if kind is dict else kind(**parts)

        return rebuild


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
