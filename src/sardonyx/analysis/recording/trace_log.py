"""Keeps the books while a model runs: which tensor is which value, which storage which buffer, and when each went.

Sizes are kept as torch gives them, numbers or symbols, and become ours once the run is over: only then is it known
which of the symbols the model insists on. A value that is written in place becomes a new value on the same buffer.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from sardonyx.analysis.costs.program import Store
from sardonyx.errors import ModelError


@dataclass(slots=True)
class Kept:
    """A storage that was seen."""

    bytes: Any
    store: Store
    module: str
    born: int | None
    died: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor that was seen, and where in its storage it lies."""

    name: str
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: str
    buffer: int


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One operation that was carried out."""

    name: str
    operator: str
    module: str
    role: str | None
    reads: tuple[int, ...]  # in the order of its arguments, one that is given twice twice
    writes: tuple[int, ...]
    scalars: Mapping[str, Any]


@dataclass(slots=True)
class Book:
    """All that was seen of one run."""

    device: torch.device  # memory elsewhere takes none here
    steps: list[TraceStep] = field(default_factory=list[TraceStep])
    values: list[Seen] = field(default_factory=list[Seen])
    buffers: list[Kept] = field(default_factory=list[Kept])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    busy: bool = False  # an operation is being carried out
    _known: Any = field(default_factory=WeakTensorKeyDictionary)  # tensor -> value
    _storages: dict[int, int] = field(default_factory=dict[int, int])  # address of a storage's head -> buffer
    _watches: dict[int, Any] = field(default_factory=dict[int, Any])  # buffer -> weak reference that notes its end
    _names: Counter[str] = field(default_factory=Counter[str])

    def place(self, tensor: torch.Tensor, name: str, store: Store, module: str = "") -> int:
        """A value that is there before the run begins; tensors on one storage share its buffer."""
        buffer = self._storages.get(_address(tensor))
        if buffer is None:
            buffer = self._open(tensor, store, module, None)
        return self._enter(tensor, name, buffer)

    def same(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Let a stand-in for a tensor pass for it."""
        value = self.value(tensor)
        self._known[stand_in] = value
        address = _address(stand_in)
        if address not in self._storages:
            self._storages[address] = self.values[value].buffer
            self._watch(stand_in, address, None)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether it was seen."""
        return tensor in self._known

    def value(self, tensor: torch.Tensor) -> int:
        """The value that a tensor is."""
        return self._known[tensor]

    def written(self, tensor: torch.Tensor, name: str, module: str) -> int:
        """A value that the current step writes: on new memory, or on memory that it shares."""
        buffer = self._storages.get(_address(tensor))
        if buffer is None:
            buffer = self._open(tensor, Store.ACTIVATION, module, len(self.steps))
        return self._enter(tensor, name, buffer)

    def name(self, operator: str) -> str:
        """A name for the next step: its operator's, numbered from the second on."""
        short = operator.rpartition(".")[2]
        self._names[short] += 1
        return short if self._names[short] == 1 else f"{short}_{self._names[short] - 1}"

    def _enter(self, tensor: torch.Tensor, name: str, buffer: int) -> int:
        dtype = str(tensor.dtype).removeprefix("torch.")
        dense = tensor.layout is torch.strided
        self.values.append(Seen(name, tuple(tensor.shape), tensor.stride() if dense else (), dtype, buffer))
        self._known[tensor] = len(self.values) - 1
        return len(self.values) - 1

    def _open(self, tensor: torch.Tensor, store: Store, module: str, born: int | None) -> int:
        address = _address(tensor)
        elsewhere = tensor.device.type not in (self.device.type, "meta")
        size = 0 if elsewhere else tensor.untyped_storage().nbytes()
        self.buffers.append(Kept(size, store, module, born))
        self._storages[address] = len(self.buffers) - 1
        self._watch(tensor, address, None if born is None else self.buffers[-1])
        return len(self.buffers) - 1

    def _watch(self, tensor: torch.Tensor, address: int, kept: Kept | None) -> None:
        """Note when the storage goes, and that its address may come to mean another one."""

        def gone(_reference: object) -> None:
            self._storages.pop(address, None)
            self._watches.pop(address, None)
            if kept is not None:
                kept.died = len(self.steps) - (0 if self.busy else 1)

        self._watches[address] = weakref.ref(tensor.untyped_storage(), gone)

    def close(self) -> None:
        """Stop noting: what goes from now on outlived the run."""
        self._watches.clear()


def _address(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ModelError(f"the memory of {kind} tensors is not followed", hint="analyze a model of dense tensors")
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] the only identity that views share
