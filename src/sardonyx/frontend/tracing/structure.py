"""Flattens nested values to named tensors and rebuilds them.

An ONNX graph has a flat list of named tensors; a forward has tuples, dicts, dataclasses and caches. A `Flat` remembers
everything about a value except its tensors. Complex numbers become pairs of real ones along a new last axis.
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
    """A tensor inside a value, and its name."""

    name: str
    tensor: torch.Tensor


class Flat:
    """A flattened value: its named tensors, and how to rebuild it with others."""

    def __init__(self, value: object, name: str = "") -> None:
        """Flatten a value; `name` is the prefix of its tensors' names."""
        self.leaves: list[Leaf] = []
        self.others: list[tuple[str, str]] = []  # names and types of what is neither a tensor nor None
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
            return self._flatten_cache(value, pairs, name)
        if isinstance(value, Mapping):
            return self._flatten_mapping(cast("Mapping[Any, object]", value), name)
        if isinstance(value, (tuple, list)):
            return self._flatten_sequence(cast("Sequence[object]", value), name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            kind, rebuilds = type(value), self._flatten_all(fields, name)
            return lambda tensors: kind(**{key: rebuild(tensors) for key, rebuild in rebuilds.items()})
        if value is not None:
            self.others.append((name, type(value).__name__))
        return lambda _tensors: value

    def _flatten_all(self, items: Mapping[Any, object], name: str) -> dict[Any, Rebuild]:
        return {key: self._flatten(item, f"{name}.{key}" if name else str(key)) for key, item in items.items()}

    def _flatten_mapping(self, value: Mapping[Any, object], name: str) -> Rebuild:
        kind, rebuilds = type(value), self._flatten_all(value, name)
        if kind is dict:
            return lambda tensors: {key: rebuild(tensors) for key, rebuild in rebuilds.items()}
        return lambda tensors: cast(Any, kind)(**{key: rebuild(tensors) for key, rebuild in rebuilds.items()})

    def _flatten_sequence(self, value: Sequence[object], name: str) -> Rebuild:
        fields: Sequence[object] | None = getattr(value, "_fields", None)  # of a named tuple
        items = dict(enumerate(value)) if fields is None else dict(zip(fields, value, strict=True))
        kind, rebuilds = type(value), list(self._flatten_all(items, name).values())
        if fields is not None:
            return lambda tensors: cast(Any, kind)(*[rebuild(tensors) for rebuild in rebuilds])
        return lambda tensors: cast(Any, kind)([rebuild(tensors) for rebuild in rebuilds])

    def _flatten_cache(self, value: object, pairs: Mapping[str, Pair], name: str) -> Rebuild:
        """Flatten a cache to its keys and values, layer by layer."""
        for layer, (key, item) in pairs.items():
            self.leaves.append(Leaf(f"{name}.{layer}.key", key))
            self.leaves.append(Leaf(f"{name}.{layer}.value", item))
        return lambda tensors: with_pairs(value, [(next(tensors), next(tensors)) for _ in pairs])


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
