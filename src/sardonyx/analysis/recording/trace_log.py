"""The log of one run: which tensor is which value, which storage is which buffer, and when each storage was freed.

Sizes are stored as torch's numbers or symbols and converted after the run: only then is it known which symbols the
model fixes. A tensor that is written in place becomes a new value in the same buffer.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from msgspec import Struct, field
from torch.utils.weak import WeakTensorKeyDictionary

from sardonyx.analysis.costs.program import Store
from sardonyx.errors import ModelError


class LoggedBuffer(Struct):
    """A storage."""

    bytes: Any
    store: Store
    module: str
    born: int | None
    died: int | None = None


class LoggedValue(Struct, frozen=True):
    """A tensor, its strides and its storage."""

    name: str
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: str
    buffer: int


class TraceStep(Struct, frozen=True):
    """One operation that was executed."""

    name: str
    operator: str
    module: str
    role: str | None
    reads: tuple[int, ...]  # in the order of its arguments, with repetitions
    writes: tuple[int, ...]
    scalars: Mapping[str, Any]


class TraceLog(Struct):
    """The log of one run."""

    device: torch.device  # memory on other devices is not counted
    steps: list[TraceStep] = field(default_factory=list[TraceStep])
    values: list[LoggedValue] = field(default_factory=list[LoggedValue])
    buffers: list[LoggedBuffer] = field(default_factory=list[LoggedBuffer])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    busy: bool = False  # an operation is being executed
    _value_of: Any = field(default_factory=WeakTensorKeyDictionary)  # tensor -> value
    _storages: dict[int, int] = field(default_factory=dict[int, int])  # address of a storage object -> buffer
    _watches: dict[int, Any] = field(
        default_factory=dict[int, Any]
    )  # address -> weak reference that logs when the storage is freed
    _names: Counter[str] = field(default_factory=Counter[str])

    def add_existing(self, tensor: torch.Tensor, name: str, store: Store, module: str = "") -> int:
        """Add a value that exists before the run; tensors with one storage share a buffer."""
        buffer = self._storages.get(_address(tensor))
        if buffer is None:
            buffer = self._add_buffer(tensor, store, module, None)
        return self._add_value(tensor, name, buffer)

    def add_alias(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Treat a fake tensor as the tensor it stands for."""
        value = self.value(tensor)
        self._value_of[stand_in] = value
        address = _address(stand_in)
        if address not in self._storages:
            self._storages[address] = self.values[value].buffer
            self._watch(stand_in, address, None)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is in the log."""
        return tensor in self._value_of

    def value(self, tensor: torch.Tensor) -> int:
        """Return the index of a tensor's value."""
        return self._value_of[tensor]

    def add_result(self, tensor: torch.Tensor, name: str, module: str) -> int:
        """Add a value that the current step writes, in new or shared memory."""
        buffer = self._storages.get(_address(tensor))
        if buffer is None:
            buffer = self._add_buffer(tensor, Store.ACTIVATION, module, len(self.steps))
        return self._add_value(tensor, name, buffer)

    def step_name(self, operator: str) -> str:
        """Return a name for the next step: that of its operator, numbered from the second use on."""
        short = operator.rpartition(".")[2]
        self._names[short] += 1
        return short if self._names[short] == 1 else f"{short}_{self._names[short] - 1}"

    def _add_value(self, tensor: torch.Tensor, name: str, buffer: int) -> int:
        dtype = str(tensor.dtype).removeprefix("torch.")
        dense = tensor.layout is torch.strided
        self.values.append(LoggedValue(name, tuple(tensor.shape), tensor.stride() if dense else (), dtype, buffer))
        self._value_of[tensor] = len(self.values) - 1
        return len(self.values) - 1

    def _add_buffer(self, tensor: torch.Tensor, store: Store, module: str, born: int | None) -> int:
        address = _address(tensor)
        elsewhere = tensor.device.type not in (self.device.type, "meta")
        size = 0 if elsewhere else tensor.untyped_storage().nbytes()
        self.buffers.append(LoggedBuffer(size, store, module, born))
        self._storages[address] = len(self.buffers) - 1
        self._watch(tensor, address, None if born is None else self.buffers[-1])
        return len(self.buffers) - 1

    def _watch(self, tensor: torch.Tensor, address: int, buffer: LoggedBuffer | None) -> None:
        """Log when the storage is freed; its address may be used for another one afterwards."""

        def freed(_reference: object) -> None:
            self._storages.pop(address, None)
            self._watches.pop(address, None)
            if buffer is not None:
                buffer.died = len(self.steps) - (0 if self.busy else 1)

        self._watches[address] = weakref.ref(tensor.untyped_storage(), freed)

    def close(self) -> None:
        """Stop logging: storages that are freed later outlived the run."""
        self._watches.clear()


def _address(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ModelError(f"the memory of {kind} tensors cannot be tracked", hint="analyze a model of dense tensors")
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] the only identity that views share
