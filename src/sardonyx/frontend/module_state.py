"""Leaves a caller's module as it was: attributes, classes, flags, contents of tensors, random number generators.

A forward may change anything that it can reach: it counts in a buffer, keeps a cache on itself, and the first call of a
lazy module turns it into another class. Tracing and recording call forwards many times, so all of it is taken back.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import ModelError

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type, FunctionType, MethodType, ModuleType})
_MOST = 200_000  # objects that are looked at; modules and what they hold directly come first
_CLOSED = frozenset({*sys.stdlib_module_names, "torch", "numpy"})  # whose objects a module uses but does not own


@contextmanager
def replaced(forwards: Mapping[type[nn.Module], Callable[..., Any]]) -> Generator[None]:
    """Other forward passes on the classes, for a while."""
    before = {layer: layer.forward for layer in forwards}
    try:
        for layer, forward in forwards.items():
            layer.forward = forward
        yield
    finally:
        for layer, forward in before.items():
            layer.forward = forward


@contextmanager
def left_as_it_was(model: nn.Module) -> Generator[None]:
    """Take back everything that a run leaves on a model, whatever happens, except what is written into its tensors.

    `undoing_writes` does that. Both are apart because torch's exporters cannot be run under the latter.

    Raises:
        ModelError: torch cannot work with the model's classes.
    """
    _check_hashable(model)
    states, tensors = _held(model)
    training = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    generators = _generators()
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.restore()
        for state in states:
            state.restore()
        for module, flag in training:  # scripted modules keep theirs where Python does not see it
            if module.training != flag:
                module.training = flag
        for restore in generators:
            restore()


def _check_hashable(model: nn.Module) -> None:
    """Torch itself looks modules up in dictionaries."""
    waiting: list[nn.Module] = [model]
    while waiting:
        each = waiting.pop()
        if type(each).__hash__ is None:
            raise ModelError(
                f"torch cannot tell modules of class {type(each).__name__} apart: it has __eq__ but no __hash__",
                hint="add `__hash__ = torch.nn.Module.__hash__` to the class",
            )
        below = each._modules.values()  # pyright: ignore[reportPrivateUsage]  # torch's own way there hashes them
        waiting.extend(child for child in below if child is not None)


@contextmanager
def undoing_writes(model: nn.Module) -> Generator[Written]:
    """Undo what operations write into the tensors of a model; only what is written to is copied."""
    written = Written(tensors_of(model))
    try:
        with written:
            yield written
    finally:
        written.close()


@contextmanager
def without_shortcuts() -> Generator[None]:
    """Without torch's one-kernel shortcuts for its own attention modules, which no exporter can look into."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def uncompiled() -> AbstractContextManager[None]:
    """Run what torch would compile as it is written: compiling fails under modes, and changes the state of torch."""
    return cast("AbstractContextManager[None]", torch.compiler.set_stance("force_eager"))


def tensors_of(model: nn.Module) -> list[torch.Tensor]:
    """The parameters, buffers and all other tensors that a model holds."""
    return [held.tensor for held in _held(model)[1]]


class Written(TorchDispatchMode):
    """Copies the memory of given tensors before the first operation that writes to it."""

    supports_higher_order_operators = True

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch leaves its argument untyped
        self._own = {key for tensor in tensors if (key := _memory(tensor)) is not None}
        self._copies: dict[int, tuple[Any, Any]] = {}  # storage and copy, by the address of its head
        self._places: dict[Any, tuple[tuple[int, str], ...]] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry the operation out, after copying what it writes over."""
        named = dict(kwargs or {})
        if is_control_flow(func):
            return func(*within(self, args), **named)
        for place, name in self._places.get(func) or self._places.setdefault(func, written_arguments(func)):
            self._keep(args[place] if place < len(args) else named.get(name))
        return func(*args, **named)

    def _keep(self, value: object) -> None:
        for tensor in cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else (value,):
            key = _memory(tensor) if isinstance(tensor, torch.Tensor) else None
            if isinstance(tensor, torch.Tensor) and key in self._own and key not in self._copies:
                storage = tensor.untyped_storage()
                self._copies[key] = storage, storage.clone()

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory was written to."""
        return _memory(tensor) in self._copies

    def close(self) -> None:
        """Put the copies back."""
        for storage, content in self._copies.values():
            if storage.nbytes() != content.nbytes():
                storage.resize_(content.nbytes())
            storage.copy_(content)


def is_control_flow(func: object) -> bool:
    """Whether an operator runs functions that it is given: a branch, a loop, a scan."""
    return isinstance(func, torch._ops.HigherOrderOperator)  # pyright: ignore[reportPrivateUsage]  # no public name


def within(mode: TorchDispatchMode, args: Sequence[Any]) -> list[Any]:
    """Arguments of a higher-order operator whose functions run under a mode, which torch takes off around them."""

    def entered(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with mode:
                return function(*given, **named)

        return call

    return [entered(each) if callable(each) and not isinstance(each, torch.Tensor) else each for each in args]


def written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of every argument that an operator writes to."""
    declared = enumerate(func._schema.arguments)
    return tuple((place, each.name) for place, each in declared if each.alias_info and each.alias_info.is_write)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no shape before the first call of its module."""
    return isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def _memory(tensor: torch.Tensor) -> int | None:
    """Where a tensor's numbers are; None where they are in no plain memory."""
    if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        return None
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # the only identity that views share


class _Holder:
    """A dictionary, list, set or deque, and what it held."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._content: Any = {**holder} if isinstance(holder, dict) else [*holder]

    def restore(self) -> None:
        """Make it hold the same objects again, in the same order."""
        holder, content = self._holder, self._content
        now, before = _entries(holder), _entries(content)
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return
        holder.clear()
        getattr(holder, "update" if isinstance(holder, (dict, set)) else "extend")(content)


def _entries(holder: Any) -> list[Any]:
    return [*holder.keys(), *holder.values()] if isinstance(holder, dict) else list(holder)


class _Class:
    """An object and its class."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._kind: type[Any] = type(thing)

    def restore(self) -> None:
        """Make it an instance of that class again."""
        if type(self._thing) is not self._kind:
            object.__setattr__(self._thing, "__class__", self._kind)


class _Tensor:
    """A tensor, its class, the memory it is a view of and its flags."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self._kind = tensor, type(tensor)
        self._data, self._requires_grad = tensor.data, tensor.requires_grad
        self._grad = tensor.grad if tensor.is_leaf else None

    def restore(self) -> None:
        """Make it that view again."""
        tensor = self.tensor
        if type(tensor) is not self._kind or not _is_same_view(tensor, self._data):
            tensor.data = self._data
            tensor.__class__ = self._kind
        if not tensor.is_leaf:
            return
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad = self._requires_grad
        if tensor.grad is not self._grad:
            tensor.grad = self._grad


def _is_same_view(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    if is_lazy(tensor):
        return True
    if tensor.shape != data.shape or _memory(tensor) != _memory(data):
        return False
    is_plain = _memory(tensor) is not None
    return not is_plain or (tensor.stride(), tensor.storage_offset()) == (data.stride(), data.storage_offset())


State = _Holder | _Class


def _held(model: nn.Module) -> tuple[list[State], list[_Tensor]]:
    """What a model reaches through attributes and containers, and the tensors among it."""
    states: list[State] = []
    tensors: list[_Tensor] = []
    waiting: deque[Any] = deque([model, *model.parameters(), *model.buffers()])
    seen: dict[int, Any] = {}  # the object too, so that its id stays its own
    while waiting and len(seen) < _MOST:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, torch.Tensor):
            tensors.append(_Tensor(each))
        elif isinstance(each, (dict, list, set, deque)):
            states.append(_Holder(each))
        waiting.extend(value for value in _inside(each) if type(value) not in _PLAIN)
        if _is_open(each):
            states += [_Class(each), _Holder(vars(each))]
    return states, tensors


def _inside(thing: Any) -> Iterator[Any]:
    """The objects that a forward could change through this one."""
    if isinstance(thing, dict):
        yield from cast("dict[Any, Any]", thing).values()
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        yield from cast("Sequence[Any]", thing)
    if _is_open(thing):
        yield from vars(thing).values()


def _is_open(thing: Any) -> bool:
    """Whether an object's attributes are the model's own state, and not those of a library's machinery."""
    if isinstance(thing, nn.Module):
        return True
    if isinstance(thing, (type, ModuleType, FunctionType, MethodType, torch.Tensor)) or not type(thing).__dictoffset__:
        return False
    return type(thing).__module__.partition(".")[0] not in _CLOSED


def _generators() -> list[Callable[[], None]]:
    """What sets the random number generators of torch, numpy and Python back to where they are."""
    chance = torch.get_rng_state()
    arrays, plain = np.random.get_state(), random.getstate()  # the generator that a forward may use
    found: list[Callable[[], None]] = [
        lambda: torch.set_rng_state(chance),
        lambda: np.random.set_state(arrays),
        lambda: random.setstate(plain),
    ]
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        found.append(lambda: torch.cuda.set_rng_state_all(devices))
    return found
