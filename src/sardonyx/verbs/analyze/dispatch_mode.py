"""A dispatch mode that logs every operation of a torch model: which tensor is which value, and when it is freed.

Sizes are stored as torch's numbers or symbols and converted after the run: only then is it known which symbols the
model fixes. A tensor that is written in place becomes a new value in the same buffer.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from types import CodeType
from typing import Any, cast

import torch
from msgspec import Struct, field
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import is_control_flow, run_under_mode
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep
from sardonyx.verbs.analyze.costs.program import Buffer, Store, Value


class TraceStep(Struct, frozen=True):
    """One operation that was executed."""

    name: str
    operator: str
    module: str
    reads: tuple[int, ...]  # in the order of its arguments, with repetitions
    writes: tuple[int, ...]
    scalars: Mapping[str, Any]


class TraceLog(Struct):
    """The log of one run."""

    device: torch.device  # memory on other devices is not counted
    steps: list[TraceStep] = field(default_factory=list[TraceStep])
    values: list[Value] = field(default_factory=list[Value])  # with the sizes of torch
    strides: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])  # of each value
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    died: dict[int, int] = field(default_factory=dict[int, int])  # buffer -> the step after which it was freed
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    busy: bool = False  # an operation is being executed
    names: Counter[str] = field(default_factory=Counter[str])  # how many steps have each name
    _value_of: Any = field(default_factory=WeakTensorKeyDictionary)  # tensor -> value
    _storages: dict[int, int] = field(default_factory=dict[int, int])  # address of a storage object -> buffer
    # address -> weak reference that logs when the storage is freed
    _watches: dict[int, Any] = field(default_factory=dict[int, Any])

    def add(self, tensor: torch.Tensor, name: str, store: Store, module: str = "") -> int:
        """Add a value; tensors with one storage share a buffer. Activations are allocated by the current step."""
        address = _address(tensor)
        if address not in self._storages:
            elsewhere = tensor.device.type not in (self.device.type, "meta")
            size, is_new = 0 if elsewhere else tensor.untyped_storage().nbytes(), store is Store.ACTIVATION
            self._storages[address] = len(self.buffers)
            self._watch(tensor, address, len(self.buffers) if is_new else None)
            self.buffers.append(Buffer(size, store, module, len(self.steps) if is_new else None))
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.values.append(Value(name, tuple(tensor.shape), dtype, self._storages[address]))
        self.strides.append(tensor.stride())
        self._value_of[tensor] = len(self.values) - 1
        return len(self.values) - 1

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

    def _watch(self, tensor: torch.Tensor, address: int, buffer: int | None) -> None:
        """Log when the storage is freed; its address may be used for another one afterwards."""

        def freed(_reference: object) -> None:
            self._storages.pop(address, None)
            self._watches.pop(address, None)
            if buffer is not None:
                self.died[buffer] = len(self.steps) - (0 if self.busy else 1)

        self._watches[address] = weakref.ref(tensor.untyped_storage(), freed)

    def close(self) -> None:
        """Stop logging: storages that are freed later outlived the run."""
        self._watches.clear()


def _address(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ModelError(f"the memory of {kind} tensors cannot be tracked", hint="analyze a model of dense tensors")
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] the only identity that views share


_DEVICE: Any = torch.ops.prim.device.default
_OVERWRITE = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})  # they do not read what they overwrite
_FRESH = frozenset({"aten.lift_fresh", "aten.lift_fresh_copy"})  # how torch.tensor(...) creates a tensor


class NeedsData(Exception):
    """The operator depends on the values of its inputs, so fake tensors do not suffice."""


class RecordingMode(TorchDispatchMode):
    """Logs each operation, the values it reads and writes, and the module that runs it."""

    supports_higher_order_operators = True

    def __init__(self, log: TraceLog, tracker: ModuleTracker, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Log to `log`; `stand_in` returns the tensor to use in place of one of the model or its caller."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType] its argument is untyped
        self._log, self._tracker, self._stand_in = log, tracker, stand_in
        self._overloads: dict[Any, _Overload] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Execute an operation and log it."""
        if is_control_flow(func):
            return self._control_flow(func, args, dict(kwargs or {}))
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # as frequent as computations
            return args[0].fake_device
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        overload = self._overloads.get(func) or self._overloads.setdefault(func, _Overload(func))
        substitute = self._stand_in if overload.makes_fresh else self._registered
        positional = [_replaced(value, substitute) for value in args]
        named = {name: _replaced(value, substitute) for name, value in (kwargs or {}).items()}
        if named.get("device") == torch.device("meta"):  # taken from weights on the meta device
            named["device"] = self._log.device
        arguments = overload.arguments(positional, named)
        reads = tuple(self._log.value(tensor) for tensor in overload.read(arguments))
        self._log.busy = True
        try:
            result = func(*positional, **named)
        finally:
            self._log.busy = False
        results = _unique([*_tensors(result), *overload.changed(arguments)])
        if reads or results:
            by_name = zip(overload.names, arguments, strict=True)
            scalars = {name: value for name, value in by_name if not _tensors(value)}
            self._log_step(overload.operator, reads, results, scalars)
        return result

    def _control_flow(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Execute a branch, loop or scan; the operations inside are logged, and the operator if it has new results."""
        operands = [self._registered(tensor) for tensor in _tensors([*args, *named.values()])]
        if any(isinstance(tensor, FakeTensor) for tensor in operands):
            raise NeedsData(func.name())
        reads = tuple(self._log.value(tensor) for tensor in _unique(operands))
        result = func(*run_under_mode(self, args), **named)
        new = [tensor for tensor in _unique(_tensors(result)) if not self._log.knows(tensor)]
        if new:
            self._log_step(f"higher_order.{func.name()}", reads, new, {})
        return result

    def _log_step(
        self, operator: str, reads: tuple[int, ...], results: Sequence[torch.Tensor], scalars: Mapping[str, Any]
    ) -> None:
        log, module, name = self._log, self._tracker.current(), operator.rpartition(".")[2]
        log.names[name] += 1
        if log.names[name] > 1:  # numbered from the second use on
            name = f"{name}_{log.names[name] - 1}"
        names = [name] if len(results) == 1 else [f"{name}.{index}" for index in range(len(results))]
        writes = tuple(log.add(one, own, Store.ACTIVATION, module) for one, own in zip(results, names, strict=True))
        log.steps.append(TraceStep(name, operator, module, reads, writes, scalars))

    def _registered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor to use; one that is not in the log is added as a constant."""
        substitute = self._stand_in(tensor)
        if not self._log.knows(substitute):
            self._log.add(substitute, "constant", Store.WEIGHT, self._tracker.current())
        return substitute


class _Overload:
    """The schema of an operator, read once."""

    def __init__(self, func: Any) -> None:
        parameters = list(func._schema.arguments)
        self.operator: str = func._schema.name.replace("::", ".")
        self.names: list[str] = [parameter.name for parameter in parameters]
        self._defaults = [parameter.default_value for parameter in parameters]
        self._written = [parameter.alias_info is not None and parameter.alias_info.is_write for parameter in parameters]
        overwrites = self.operator in _OVERWRITE
        self.makes_fresh = self.operator in _FRESH
        self._read = [
            not self.makes_fresh
            and not (written and (parameter.is_out or overwrites))  # their old content is discarded
            for written, parameter in zip(self._written, parameters, strict=True)
        ]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return all arguments of a call in schema order."""
        rest = range(len(args), len(self.names))
        return [*args, *(kwargs.get(self.names[index], self._defaults[index]) for index in rest)]

    def read(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        return _tensors([value for value, is_read in zip(arguments, self._read, strict=True) if is_read])

    def changed(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        return _tensors([value for value, is_written in zip(arguments, self._written, strict=True) if is_written])


def _replaced(value: Any, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an argument with its tensors replaced; schemas have tensors and lists of tensors."""
    if isinstance(value, torch.Tensor):
        return by(value)
    if isinstance(value, (list, tuple)) and _tensors(value := cast("Sequence[Any]", value)):
        return [_replaced(item, by) for item in value]
    return value


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in cast("Sequence[object]", value) for tensor in _tensors(item)]
    return []


def _unique(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


# Track which module, or which node of a graph module, executes the current operation.

_DECOMPOSITION = "sardonyx_decomposition"  # the attribute in which `decompose` stores its result on a graph module
_ASSIGNED = re.compile(r"\s+(\w+)(?:\s*:[^=]+)? = ")  # a line of generated code starts with the name of its node


class ModuleTracker:
    """The modules that are being called, innermost last, and the current node if a graph module runs."""

    def __init__(self, root: nn.Module) -> None:
        """Read the tree of a module and the metadata of its graph."""
        self._tree, self._members = LiveTree(root), set(root.modules())
        self._calls: list[ModuleStep] = []
        self._count = 0
        self._code, self._modules = _generated_code(root)

    def current(self) -> str:
        """Return the path of the running module, with a second call marked `block@1`."""
        # the current node of a graph is found by the current line of its generated code
        frame = sys._getframe(1) if self._code is not None else None  # pyright: ignore[reportPrivateUsage]  # documented
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        by_node = self._modules.get(frame.f_lineno) if frame is not None else None
        return self._tree.path(self._calls) if by_node is None else by_node

    @contextlib.contextmanager
    def tracking(self) -> Generator[None]:
        """Track the calls of the model's modules."""
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        if module in self._members:
            self._count += 1
            self._calls.append(ModuleStep(module, self._count))

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        if module in self._members:
            self._calls.pop()


def _generated_code(root: nn.Module) -> tuple[CodeType | None, Mapping[int, str]]:
    """Return the generated code of a graph module, and the module of each of its lines.

    They are those that `decompose` stored for the nodes, otherwise those from torch.export.
    """
    if not isinstance(root, fx.GraphModule):
        return None, {}
    decomposition: Any = getattr(root, _DECOMPOSITION, None)
    stacks = {node.name: node.meta.get("nn_module_stack") for node in root.graph.nodes}
    modules = {name: str(next(reversed(stack.values()))[0]) for name, stack in stacks.items() if stack}
    modules = modules if decomposition is None else decomposition.modules
    names = enumerate(map(_ASSIGNED.match, root.code.split("\n")), start=1)
    forward: Any = type(root).forward
    return forward.__code__, {line: modules[name[1]] for line, name in names if name and name[1] in modules}
