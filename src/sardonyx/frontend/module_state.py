"""Restores a caller's module after runs: attributes, classes, flags, tensor contents, random number generators.

A forward may change anything that it can reach: it counts in a buffer, stores a cache on itself, and the first call of
a lazy module changes its class. Tracing and recording call forwards many times, so all of these changes are undone.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import ModelError

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type, FunctionType, MethodType, ModuleType})
_MOST_OBJECTS = 200_000  # to visit; modules and their direct attributes come first
_BATCH_NORM: Any = torch.ops.aten.native_batch_norm.default  # writes to its statistics without declaring that
_STATISTICS, _TRAINING = slice(3, 5), 5  # its operands
_EXTERNAL = frozenset({*sys.stdlib_module_names, "torch", "numpy"})  # packages whose objects a module does not own


Setting = TypeVar("Setting")


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Generator[None]:
    """Set an attribute, and restore it on exit; leave an owner alone that does not have it."""
    if not hasattr(owner, name):
        yield
        return
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def nothing(*_args: object, **_kwargs: object) -> None:
    """Do nothing, in place of a function whose effect is not wanted."""


@contextmanager
def restoring_state(model: nn.Module) -> Generator[list[torch.Tensor]]:
    """Restore on exit everything that a run changes on a model, except values in its tensors, which it yields.

    `unchanged` restores those as well. The two are separate because torch's exporters do not run under the latter.

    Raises:
        ModelError: If torch cannot work with the model's classes.
    """
    _check_hashable(model)
    states, tensors = _reachable(model)
    training = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    generators = _generators()
    try:
        yield [saved.tensor for saved in tensors]
    finally:
        for tensor in tensors:
            tensor.restore()
        for state in states:
            state.restore()
        for module, flag in training:  # scripted modules store it outside of Python
            if module.training != flag:
                module.training = flag
        for restore in generators:
            restore()


def _check_hashable(model: nn.Module) -> None:
    """Refuse modules that cannot be dictionary keys: torch itself uses them as such."""
    waiting: list[nn.Module] = [model]
    while waiting:
        module = waiting.pop()
        if type(module).__hash__ is None:
            raise ModelError(
                f"torch cannot tell modules of class {type(module).__name__} apart: it has __eq__ but no __hash__",
                hint="add `__hash__ = torch.nn.Module.__hash__` to the class",
            )
        below = module._modules.values()  # pyright: ignore[reportPrivateUsage]  # named_children() would hash them
        waiting.extend(child for child in below if child is not None)


@contextmanager
def unchanged(model: nn.Module) -> Generator[WriteUndo]:
    """Restore on exit everything that a run changes on a model; finding it takes as long as a short run."""
    with restoring_state(model) as tensors, _undoing(tensors) as written:
        yield written


@contextmanager
def undoing_writes(model: nn.Module) -> Generator[WriteUndo]:
    """Undo on exit what operations write into a model's tensors; only memory that is written to is copied."""
    with _undoing(tensors_of(model)) as written:
        yield written


@contextmanager
def _undoing(tensors: Sequence[torch.Tensor]) -> Generator[WriteUndo]:
    written = WriteUndo(tensors)
    try:
        with written:
            yield written
    finally:
        written.close()


@contextmanager
def switched(read: Callable[[], Setting], write: Callable[[Setting], object], value: Setting) -> Generator[None]:
    """Change a setting that has a getter and a setter, and restore it on exit."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def fast_paths(*, enabled: bool) -> AbstractContextManager[None]:
    """Set whether torch's attention modules use fast paths: single kernels that no exporter can trace into."""
    mha = torch.backends.mha
    return switched(mha.get_fastpath_enabled, mha.set_fastpath_enabled, enabled)


def uncompiled() -> AbstractContextManager[None]:
    """Run compiled functions eagerly: compiling fails under dispatch modes and changes torch's state."""
    return cast("AbstractContextManager[None]", torch.compiler.set_stance("force_eager"))


def tensors_of(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters, buffers and all other tensors that a model reaches."""
    return [saved.tensor for saved in _reachable(model)[1]]


class OperationMode(TorchDispatchMode):
    """Sees every operation, also those of branches and loops."""

    supports_higher_order_operators = True  # they are run as they are

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch leaves its argument untyped

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation."""
        return func(*args, **kwargs)


class WriteUndo(OperationMode):
    """Copies the memory of tensors before the first operation that writes to it, so that `close` can restore it."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._own = {key for tensor in tensors if (key := _memory(tensor)) is not None}
        self._copies: dict[int, tuple[Any, Any]] = {}  # storage and its copy, by identity
        self._written: dict[Any, tuple[tuple[int, str], ...]] = {}  # arguments that an operator writes to

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operation after copying what it overwrites."""
        if is_control_flow(func):
            return func(*run_under_mode(self, args), **kwargs)
        for index, name in self._written.get(func) or self._written.setdefault(func, written_arguments(func)):
            self._save(args[index] if index < len(args) else kwargs.get(name))
        if func is _BATCH_NORM and args[_TRAINING]:
            self._save(args[_STATISTICS])
        return func(*args, **kwargs)

    def _save(self, value: object) -> None:
        for tensor in cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else (value,):
            key = _memory(tensor) if isinstance(tensor, torch.Tensor) else None
            if isinstance(tensor, torch.Tensor) and key in self._own and key not in self._copies:
                storage = tensor.untyped_storage()
                self._copies[key] = storage, storage.clone()

    def covers(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's memory was written to."""
        return _memory(tensor) in self._copies

    def close(self) -> None:
        """Restore the copied memory."""
        for storage, content in self._copies.values():
            if storage.nbytes() != content.nbytes():
                storage.resize_(content.nbytes())
            storage.copy_(content)


class Seen(OperationMode):
    """Detects whether a run calls an operator of some kind."""

    def __init__(self, is_wanted: Callable[[Any], bool]) -> None:
        super().__init__()
        self._is_wanted, self.seen = is_wanted, False

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the operation, and run it."""
        self.seen = self.seen or self._is_wanted(func)
        return func(*args, **kwargs)


def is_control_flow(func: object) -> bool:
    """Return whether an operator takes functions to run: a branch, a loop, a scan."""
    return isinstance(func, torch._ops.HigherOrderOperator)  # pyright: ignore[reportPrivateUsage]  # no public name


def run_under_mode(mode: TorchDispatchMode, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a higher-order operator so that its functions run under a mode, which torch disables."""

    def under_mode(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return function(*args, **kwargs)

        return call

    return [under_mode(arg) if callable(arg) and not isinstance(arg, torch.Tensor) else arg for arg in args]


def written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return index and name of every argument that an operator writes to."""
    declared = enumerate(func._schema.arguments)
    return tuple((index, arg.name) for index, arg in declared if arg.alias_info and arg.alias_info.is_write)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no shape before the first call of its module."""
    return isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def _memory(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage; None if it has no plain memory."""
    if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        return None
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # the only identity that views share


class _SavedContainer:
    """A dictionary, list, set or deque with its contents."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._content: Any = {**container} if isinstance(container, dict) else [*container]

    def restore(self) -> None:
        """Put the same objects back in the same order."""
        container, content = self._container, self._content
        now, before = _entries(container), _entries(content)
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return
        container.clear()
        getattr(container, "update" if isinstance(container, (dict, set)) else "extend")(content)


def _entries(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


class _SavedClass:
    """An object with its class."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._kind: type[Any] = type(thing)

    def restore(self) -> None:
        """Set the object's class back."""
        if type(self._thing) is not self._kind:
            object.__setattr__(self._thing, "__class__", self._kind)


class _SavedTensor:
    """A tensor with its class, the memory it is a view of and its flags."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self._kind = tensor, type(tensor)
        self._data, self._requires_grad = tensor.data, tensor.requires_grad
        self._grad = tensor.grad if tensor.is_leaf else None

    def _is_same_view(self) -> bool:
        tensor, data = self.tensor, self._data
        if type(tensor) is not self._kind or is_lazy(tensor):
            return type(tensor) is self._kind
        if tensor.shape != data.shape or _memory(tensor) != _memory(data):
            return False
        is_plain = _memory(tensor) is not None
        return not is_plain or (tensor.stride(), tensor.storage_offset()) == (data.stride(), data.storage_offset())

    def restore(self) -> None:
        """Set class, view and flags back."""
        tensor = self.tensor
        if not self._is_same_view():
            tensor.data = self._data
            tensor.__class__ = self._kind
        if not tensor.is_leaf:
            return
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad = self._requires_grad
        if tensor.grad is not self._grad:
            tensor.grad = self._grad


_SavedState = _SavedContainer | _SavedClass


def _reachable(model: nn.Module) -> tuple[list[_SavedState], list[_SavedTensor]]:
    """Return the state of everything a model reaches through attributes and containers, and of its tensors."""
    states: list[_SavedState] = []
    tensors: list[_SavedTensor] = []
    waiting: deque[Any] = deque([model, *model.parameters(), *model.buffers()])
    seen: dict[int, Any] = {}  # the object is kept so that its id stays unique
    while waiting and len(seen) < _MOST_OBJECTS:
        item = waiting.popleft()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            tensors.append(_SavedTensor(item))
        elif isinstance(item, (dict, list, set, deque)):
            states.append(_SavedContainer(item))
        below: list[Any] = []  # what a forward could change through this object
        if isinstance(item, dict):
            below += cast("dict[Any, Any]", item).values()
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            below += cast("Sequence[Any]", item)
        if has_own_state(item):
            below += vars(item).values()
            states += [_SavedClass(item), _SavedContainer(vars(item))]
        waiting.extend(value for value in below if type(value) not in _PLAIN)
    return states, tensors


def has_own_state(thing: Any) -> bool:
    """Return whether an object's attributes are state of the model, as opposed to internals of a library."""
    if isinstance(thing, nn.Module):
        return True
    if isinstance(thing, (type, ModuleType, FunctionType, MethodType, torch.Tensor)) or not type(thing).__dictoffset__:
        return False
    return type(thing).__module__.partition(".")[0] not in _EXTERNAL


def _generators() -> list[Callable[[], None]]:
    """Return functions that restore the random number generators of torch, numpy and Python."""
    torch_state = torch.get_rng_state()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    restores: list[Callable[[], None]] = [
        lambda: torch.set_rng_state(torch_state),
        lambda: np.random.set_state(numpy_state),
        lambda: random.setstate(python_state),
    ]
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        restores.append(lambda: torch.cuda.set_rng_state_all(devices))
    return restores
