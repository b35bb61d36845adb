"""Nested values as flat named tensors, and back: what a module takes and gives, as ONNX sees it.

An ONNX graph has a flat list of named tensors where a forward has tuples, dicts, dataclasses and caches. A `Shape` of a
value remembers everything about it but its tensors. Complex numbers are pairs of real ones, along a last axis.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch

from sardonyx.frontend.tracing.cache import Pair, named_pairs, with_pairs

Rebuild: TypeAlias = "Callable[[Iterator[torch.Tensor]], Any]"


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor somewhere inside a value, and the name it goes by."""

    name: str
    tensor: torch.Tensor


class Flat:
    """A value taken apart: named tensors, and how to put others in their places."""

    def __init__(self, value: object, name: str = "") -> None:
        """Take a value apart; `name` is what its tensors' names begin with."""
        self.leaves: list[Leaf] = []
        self.others: list[tuple[str, str]] = []  # names and types of what is neither a tensor nor None
        self._rebuild = self._take(value, name)

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in order."""
        return [leaf.name for leaf in self.leaves]

    def rebuilt(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The same value with other tensors in it."""
        return self._rebuild(iter(tensors))

    def _take(self, value: object, name: str) -> Rebuild:
        if isinstance(value, torch.Tensor) and value.is_complex() and value.layout is torch.strided:
            self.leaves.append(Leaf(name or "output", torch.view_as_real(value.resolve_conj())))
            return lambda tensors: torch.view_as_complex(next(tensors))
        if isinstance(value, torch.Tensor):
            self.leaves.append(Leaf(name or "output", value))
            return next
        if (pairs := named_pairs(value)) is not None:
            return self._take_cache(value, pairs, name)
        if isinstance(value, Mapping):
            return self._take_mapping(cast("Mapping[Any, object]", value), name)
        if isinstance(value, (tuple, list)):
            return self._take_sequence(cast("Sequence[object]", value), name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            kind, takes = type(value), self._take_all(fields, name)
            return lambda tensors: kind(**{key: take(tensors) for key, take in takes.items()})
        if value is not None:
            self.others.append((name, type(value).__name__))
        return lambda _tensors: value

    def _take_all(self, items: Mapping[Any, object], name: str) -> dict[Any, Rebuild]:
        return {key: self._take(item, f"{name}.{key}" if name else str(key)) for key, item in items.items()}

    def _take_mapping(self, value: Mapping[Any, object], name: str) -> Rebuild:
        kind, takes = type(value), self._take_all(value, name)
        if kind is dict:
            return lambda tensors: {key: take(tensors) for key, take in takes.items()}
        return lambda tensors: cast(Any, kind)(**{key: take(tensors) for key, take in takes.items()})

    def _take_sequence(self, value: Sequence[object], name: str) -> Rebuild:
        fields: Sequence[object] | None = getattr(value, "_fields", None)  # of a named tuple
        items = dict(enumerate(value)) if fields is None else dict(zip(fields, value, strict=True))
        kind, takes = type(value), list(self._take_all(items, name).values())
        if fields is not None:
            return lambda tensors: cast(Any, kind)(*[take(tensors) for take in takes])
        return lambda tensors: cast(Any, kind)([take(tensors) for take in takes])

    def _take_cache(self, value: object, pairs: Mapping[str, Pair], name: str) -> Rebuild:
        """A cache of keys and values; as an output it is the present, as an input the past."""
        for layer, (key, item) in pairs.items():
            self.leaves.append(Leaf(f"{name}.{layer}.key", key))
            self.leaves.append(Leaf(f"{name}.{layer}.value", item))
        return lambda tensors: with_pairs(value, [(next(tensors), next(tensors)) for _ in pairs])


def named_arguments(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Positional and keyword arguments by the parameter names of the module's forward, in the order of a call."""
    parameters = inspect.signature(module.forward).parameters.values()
    named: dict[str, Any] = {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    for place, value in enumerate(args):
        name = positional[place].name if place < len(positional) else f"{rest}_{place - len(positional)}"
        named[name] = value
    return named | dict(kwargs)
