"""Sees every operation that torch carries out while a model runs, and enters it in the book."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.analysis.costs.program import Store
from sardonyx.analysis.recording.current_module import Running
from sardonyx.analysis.recording.trace_log import Book, TraceStep
from sardonyx.frontend.module_state import is_control_flow, within

_WHERE: Any = torch.ops.prim.device.default
_OVERWRITE = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})  # what was there before does not matter to them
_FRESH = frozenset({"aten.lift_fresh", "aten.lift_fresh_copy"})  # how torch.tensor(...) brings data into the world


class NeedsData(Exception):
    """An operator that decides by the values of its inputs what is carried out."""


class Watcher(TorchDispatchMode):
    """Enters each operation, the values it reads and writes, and the module that ran it."""

    supports_higher_order_operators = True

    def __init__(self, book: Book, running: Running, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`stand_in` gives the tensor to work with in place of one that the model or its caller holds."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType] torch leaves its argument untyped
        self._book, self._running, self._stand_in = book, running, stand_in
        self._overloads: dict[Any, _Overload] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry the operation out and write it down."""
        if is_control_flow(func):
            return self._control_flow(func, args, dict(kwargs or {}))
        if func is _WHERE and isinstance(args[0], FakeTensor):  # torch asks it as often as it computes
            return args[0].fake_device
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        overload = self._overloads.get(func) or self._overloads.setdefault(func, _Overload(func))
        met = self._stand_in if overload.makes_fresh else self._met
        taken = [_replaced(value, met) for value in args]
        named = {name: _replaced(value, met) for name, value in (kwargs or {}).items()}
        if named.get("device") == torch.device("meta"):  # asked of weights that are nowhere
            named["device"] = self._book.device
        given = overload.given(taken, named)
        reads = tuple(self._book.value(tensor) for tensor in overload.read(given))
        self._book.busy = True
        try:
            result = func(*taken, **named)
        finally:
            self._book.busy = False
        self._enter(overload, given, reads, _once([*_tensors(result), *overload.changed(given)]))
        return result

    def _control_flow(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Carry out a branch, loop or scan: what its functions do is written down, and else that it was done."""
        given = [self._met(tensor) for tensor in _tensors([*args, *named.values()])]
        if any(isinstance(tensor, FakeTensor) for tensor in given):
            raise NeedsData(func.name())
        reads = tuple(self._book.value(tensor) for tensor in _once(given))
        result = func(*within(self, args), **named)
        made = [tensor for tensor in _once(_tensors(result)) if not self._book.knows(tensor)]
        if made:
            self._write_down(f"higher_order.{func.name()}", reads, made, {})
        return result

    def _enter(
        self, overload: _Overload, given: Sequence[Any], reads: tuple[int, ...], written: Sequence[torch.Tensor]
    ) -> None:
        if not reads and not written:
            return
        scalars = {each: value for each, value in zip(overload.names, given, strict=True) if not _tensors(value)}
        self._write_down(overload.operator, reads, written, scalars)

    def _write_down(
        self, operator: str, reads: tuple[int, ...], written: Sequence[torch.Tensor], scalars: Mapping[str, Any]
    ) -> None:
        book, (module, role) = self._book, self._running.here()
        name = book.name(operator)
        names = [name] if len(written) == 1 else [f"{name}.{place}" for place in range(len(written))]
        writes = tuple(book.written(t, n, module) for t, n in zip(written, names, strict=True))
        book.steps.append(TraceStep(name, operator, module, role, reads, writes, scalars))

    def _met(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor to work with; one that no operation made and nobody announced was there before: a constant."""
        met = self._stand_in(tensor)
        if not self._book.knows(met):
            self._book.place(met, "constant", Store.WEIGHT, self._running.here()[0])
        return met


class _Overload:
    """What an operator's schema says, asked once."""

    def __init__(self, func: Any) -> None:
        declared = list(func._schema.arguments)
        self.operator: str = func._schema.name.replace("::", ".")
        self.names: list[str] = [each.name for each in declared]
        self._defaults = [each.default_value for each in declared]
        self._written = [each.alias_info is not None and each.alias_info.is_write for each in declared]
        overwrites = self.operator in _OVERWRITE
        lost = [each.is_out or overwrites for each in declared]  # what an argument that is written held before
        self.makes_fresh = self.operator in _FRESH
        self._read = [
            not self.makes_fresh and not (written and gone) for written, gone in zip(self._written, lost, strict=True)
        ]

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What every argument is in a call."""
        rest = range(len(args), len(self.names))
        return [*args, *(kwargs.get(self.names[place], self._defaults[place]) for place in rest)]

    def read(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors it reads, in the order of its arguments."""
        return [tensor for value, read in zip(given, self._read, strict=True) if read for tensor in _tensors(value)]

    def changed(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among its arguments that it writes into."""
        return [
            each for value, written in zip(given, self._written, strict=True) if written for each in _tensors(value)
        ]


def _replaced(value: Any, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An argument with other tensors in it; a schema knows tensors and lists of them."""
    if isinstance(value, torch.Tensor):
        return by(value)
    if isinstance(value, (list, tuple)) and _tensors(value := cast("Sequence[Any]", value)):
        return [_replaced(item, by) for item in value]
    return value


def _tensors(value: object) -> Sequence[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (list, tuple)):
        return [tensor for item in cast("Sequence[object]", value) for tensor in _tensors(item)]
    return ()


def _once(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
