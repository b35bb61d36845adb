"""A dispatch mode that logs every operation that torch executes while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.analysis.costs.program import Store
from sardonyx.analysis.recording.current_module import ModuleTracker
from sardonyx.analysis.recording.trace_log import TraceLog, TraceStep
from sardonyx.frontend.module_state import is_control_flow, run_under_mode

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
        self._log_operator(overload, arguments, reads, _unique([*_tensors(result), *overload.changed(arguments)]))
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

    def _log_operator(
        self, overload: _Overload, arguments: Sequence[Any], reads: tuple[int, ...], results: Sequence[torch.Tensor]
    ) -> None:
        if not reads and not results:
            return
        scalars = {name: value for name, value in zip(overload.names, arguments, strict=True) if not _tensors(value)}
        self._log_step(overload.operator, reads, results, scalars)

    def _log_step(
        self, operator: str, reads: tuple[int, ...], results: Sequence[torch.Tensor], scalars: Mapping[str, Any]
    ) -> None:
        log, (module, role) = self._log, self._tracker.current()
        name = log.step_name(operator)
        names = [name] if len(results) == 1 else [f"{name}.{index}" for index in range(len(results))]
        writes = tuple(log.add_result(tensor, own, module) for tensor, own in zip(results, names, strict=True))
        log.steps.append(TraceStep(name, operator, module, role, reads, writes, scalars))

    def _registered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor to use; one that is not in the log is added as a constant."""
        substitute = self._stand_in(tensor)
        if not self._log.knows(substitute):
            self._log.add_existing(substitute, "constant", Store.WEIGHT, self._tracker.current()[0])
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
        discarded = [
            parameter.is_out or overwrites for parameter in parameters
        ]  # the old content of a written argument
        self.makes_fresh = self.operator in _FRESH
        self._read = [
            not self.makes_fresh and not (written and unread)
            for written, unread in zip(self._written, discarded, strict=True)
        ]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return all arguments of a call in schema order."""
        rest = range(len(args), len(self.names))
        return [*args, *(kwargs.get(self.names[index], self._defaults[index]) for index in rest)]

    def read(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors that the operator reads, in the order of its arguments."""
        return _tensors([value for value, is_read in zip(arguments, self._read, strict=True) if is_read])

    def changed(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors among the arguments that the operator writes."""
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
