"""Sees every operation that torch carries out while a model runs, and enters it in the book."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sardonyx.costs.program import Store
from sardonyx.recording.book import Book, Step
from sardonyx.recording.running import Running

_OVERWRITE = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})  # what was there before does not matter to them
_FRESH = frozenset({"aten.lift_fresh", "aten.lift_fresh_copy"})  # how torch.tensor(...) brings data into the world


class Watcher(TorchDispatchMode):
    """Enters each operation, the values it reads and writes, and the module that ran it."""

    def __init__(self, book: Book, running: Running, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`stand_in` gives the tensor to work with in place of one that the model or its caller holds."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType] torch leaves its argument untyped
        self._book, self._running, self._stand_in = book, running, stand_in

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry the operation out and write it down."""
        book, operator = self._book, func._schema.name.replace("::", ".")
        if func.namespace == "prim":  # asks where a tensor is, and the like
            return func(*args, **(kwargs or {}))
        met = self._stand_in if operator in _FRESH else self._met
        taken, named = tree_map_only(torch.Tensor, met, (args, dict(kwargs or {})))
        reads = () if operator in _FRESH else tuple(book.value(t) for t in _read(func, operator, taken, named))
        if named.get("device") == torch.device("meta"):  # asked of weights that are nowhere
            named["device"] = book.device
        book.busy = True
        try:
            result = func(*taken, **named)
        finally:
            book.busy = False
        written = _once([*_tensors(result), *_mutated(func, taken, named)])
        if reads or written:
            name, module = book.name(operator), self._running.module()
            names = [name] if len(written) == 1 else [f"{name}.{place}" for place in range(len(written))]
            writes = tuple(book.written(t, n, module) for t, n in zip(written, names, strict=True))
            scalars = dict(_scalars(func, taken, named))
            book.steps.append(Step(name, operator, module, self._running.role(), reads, writes, scalars))
        return result

    def _met(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor to work with; one that no operation made and nobody announced was there before: a constant."""
        met = self._stand_in(tensor)
        if not self._book.knows(met):
            self._book.place(met, "constant", Store.WEIGHT, self._running.module())
        return met


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _once(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each argument as the schema declares it, and what was given for it."""
    for place, declared in enumerate(func._schema.arguments):
        if place < len(args):
            yield declared, args[place]
        elif declared.name in kwargs:
            yield declared, kwargs[declared.name]
        else:
            yield declared, declared.default_value


def _read(func: Any, operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [
        tensor
        for declared, given in _arguments(func, args, kwargs)
        if not (_is_written(declared) and (declared.is_out or operator in _OVERWRITE))
        for tensor in _tensors(given)
    ]


def _mutated(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    if not func._schema.is_mutable:
        return []
    given = [given for declared, given in _arguments(func, args, kwargs) if _is_written(declared)]
    return _tensors(given)


def _is_written(declared: Any) -> bool:
    return declared.alias_info is not None and declared.alias_info.is_write


def _scalars(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for declared, given in _arguments(func, args, kwargs):
        if not _tensors(given):
            yield declared.name, given
