"""record: run a model once and write down what it did, without its data where that can be done.

The model runs in the mode it is in, without gradients. Torch's one-kernel shortcuts for its own attention modules stay
off, as they do under torch.export: they hide what they do, and a model that takes them could not be compared with one
that is spelled out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._mode_utils import no_dispatch

from sardonyx.analysis.costs.operators.aten import describe
from sardonyx.analysis.costs.program import Buffer, Operation, Program, Store, Value
from sardonyx.analysis.recording.current_module import Running
from sardonyx.analysis.recording.dispatch_mode import NeedsData, Watcher
from sardonyx.analysis.recording.symbols import Axes, OpenDims
from sardonyx.analysis.recording.trace_log import Book, TraceStep
from sardonyx.analysis.recording.workspaces import Machine, workspace
from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import left_as_it_was, uncompiled, undoing_writes, without_shortcuts
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.ir.shapes.expr import Size

# What was entered in the book as a Program: torch's sizes as ours, and what each operation is and costs.

Sized = Callable[[Any], Size]  # makes torch's sizes ours


def program(book: Book, sized: Sized, symbols: dict[str, int], notes: Iterable[str]) -> Program:
    """The whole run."""
    values = [Value(v.name, tuple(map(sized, v.shape)), v.dtype, v.buffer) for v in book.values]
    buffers = [Buffer(sized(b.bytes), b.store, b.module, b.born, b.died) for b in book.buffers]
    teller = _Teller(book, values, sized)
    operations = tuple(teller.operation(step) for step in book.steps)
    ends = tuple(book.inputs), tuple(book.outputs)
    return Program(operations, tuple(values), tuple(buffers), *ends, symbols, (*notes, *teller.notes()))


class _Teller:
    """Tells operations, and which of their operators are not known."""

    def __init__(self, book: Book, values: Sequence[Value], sized: Sized) -> None:
        self._book, self._values, self._sized = book, values, sized
        self._machine = Machine.here(book.device.type)
        self._unknown = dict[str, None]()

    def notes(self) -> list[str]:
        known = not self._unknown
        return [] if known else [f"taken to cost nothing, since nothing is known of them: {', '.join(self._unknown)}"]

    def operation(self, step: TraceStep) -> Operation:
        reads, writes = ([self._values[i] for i in some] for some in (step.reads, step.writes))
        scalars = {name: _plain(value, self._sized) for name, value in step.scalars.items()}
        told = describe(step.operator, reads, writes, scalars)
        if not told.known:
            self._unknown[step.operator] = None
        held = workspace(step.operator, reads, writes, scalars, self._channels_last(step), self._machine)
        return Operation(
            step.name, step.operator, told.kind, step.module, tuple(dict.fromkeys(step.reads)), step.writes,
            told.macs, told.other_flops, held, step.role,
        )  # fmt: skip

    def _channels_last(self, step: TraceStep) -> bool:
        """Whether its first input has pictures with their channels side by side in memory."""
        first = self._book.values[step.reads[0]] if step.reads else None
        return first is not None and len(first.strides) == 4 and first.strides[1] == 1 and first.shape[1] != 1


def _plain(value: Any, sized: Sized) -> object:
    """An argument that is no tensor, its sizes as ours."""
    if isinstance(value, torch.SymInt):
        return sized(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, sized) for item in cast("Iterable[Any]", value)]
    return value


_NEEDS_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NeedsData,
)
_SYMBOLIC = "symbolic sizes"  # how torch's own code says that it works with numbers only
_SHORTCUTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def record(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Axes | None = None,
    real: bool = False,
) -> Program:
    """The operations that a call of the module carries out, and the memory they work in.

    Args:
        axes: Dims that stay open, input -> axis -> name; axes of one name are one size.
        real: Run on the data itself; where it is not asked for, only where the model looks at its data (then noted).

    Raises:
        UsageError: where `axes` name what is not there.
        ModelError: where the model must run on its data and has none (it is on the meta device).
    """
    call = _Call(module, args, kwargs or {})
    if real:
        return call.on_data(["run on real data, at these sizes alone"] if axes else [])
    try:
        return call.without_data(axes)
    except _NEEDS_DATA as error:
        return call.on_data([f"run on real data, at these sizes alone: the model looks at its data ({_line(error)})"])
    except RuntimeError as error:
        if not axes or _SYMBOLIC not in str(error):
            raise
        program = record(module, args, kwargs)
        why = f"recorded at these sizes alone: torch cannot go on with open ones ({_line(error)})"
        return replace(program, notes=(why, *program.notes))


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class _Call:
    """A module with its arguments, to be recorded one way or the other."""

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._module, self._device = module, _device_of(module, args, kwargs)
        self._positional = len(args)
        self._flat = Flat(named_arguments(module, args, kwargs))

    def without_data(self, axes: Axes | None) -> Program:
        opened = OpenDims(axes, {leaf.name: leaf.tensor for leaf in self._flat.leaves}) if axes else None
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=opened.env if opened else None)
        stand_ins = _StandIns(mode, self._device)
        tensors = [
            stand_ins.with_sizes(tensor, opened.shape_of(name, tensor)) if opened else stand_ins(tensor)
            for name, tensor in ((leaf.name, leaf.tensor) for leaf in self._flat.leaves)
        ]
        book = self._run(tensors, stand_ins, mode)
        if opened is None:
            return program(book, int, {}, self._notes())
        symbols, notes = opened.settled()
        told = program(book, opened.sized, symbols, [*notes, *self._notes()])
        if not opened.is_vague:
            return told
        concrete = self.without_data(None)
        why = "recorded at these sizes alone: some size follows no formula of the open dims"
        return replace(concrete, notes=(why, *concrete.notes))

    def on_data(self, notes: list[str]) -> Program:
        if any(tensor.is_meta for tensor in (*self._module.parameters(), *self._module.buffers())):
            raise ModelError(
                "the model looks at its data, and its weights have none: they are on the meta device",
                hint="give a model with weights",
            )
        book = self._run([leaf.tensor for leaf in self._flat.leaves], lambda tensor: tensor, contextlib.nullcontext())
        return program(book, int, {}, [*notes, *self._notes()])

    def _run(
        self,
        tensors: Sequence[torch.Tensor],
        stand_in: Callable[[torch.Tensor], torch.Tensor],
        mode: contextlib.AbstractContextManager[Any],
    ) -> Book:
        book, running = Book(self._device), Running(self._module)
        for name, tensor in _state(self._module):
            book.place(tensor, name, Store.WEIGHT, name.rpartition(".")[0])
            if (other := stand_in(tensor)) is not tensor:
                book.same(tensor, other)
        given = zip(self._flat.leaves, tensors, strict=True)
        book.inputs = [book.place(tensor, leaf.name, Store.INPUT) for leaf, tensor in given]
        values = self._flat.rebuilt(tensors)
        args = [values.pop(name) for name in list(values)[: self._positional]]
        with (
            _as_recorded(self._module),
            mode,
            running.watching(),
            Watcher(book, running, stand_in),
        ):
            answer = self._module(*args, **values)
        answers = [stand_in(leaf.tensor) for leaf in Flat(answer).leaves]
        book.outputs = [book.value(t) if book.knows(t) else book.place(t, "constant", Store.WEIGHT) for t in answers]
        book.close()
        return book

    def _notes(self) -> Iterator[str]:
        if any(isinstance(each, _SHORTCUTS) and not each.training for each in self._module.modules()):
            yield "torch's one-kernel shortcuts for nn.MultiheadAttention and nn.TransformerEncoderLayer are off"
        if any(isinstance(each, nn.RNNBase) for each in self._module.modules()):
            yield "recurrent layers are recorded step by step; torch may run them as one kernel that holds more"


class _StandIns:
    """Tensors without data in place of those that the model and its caller hold, always the same one for the same."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode, self._device = mode, device
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the tensor too, so that its id stays its own

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, self._stand_in(tensor)
        return self._made[id(tensor)][1]

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            with no_dispatch():
                return FakeTensor(self._mode, tensor.detach(), self._device)
        return self._mode.from_tensor(tensor, static_shapes=True)

    def with_sizes(self, tensor: torch.Tensor, shape: Sequence[int | torch.SymInt]) -> torch.Tensor:
        """One of another shape, its axes in the same order in memory."""
        order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
        back = sorted(range(len(order)), key=order.__getitem__)
        with self._mode:
            return torch.empty([shape[axis] for axis in order], dtype=tensor.dtype, device=self._device).permute(back)


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _device_of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Where the model works: where its weights or its inputs are, the CPU for those that are nowhere."""
    given = [leaf.tensor for leaf in Flat([*args, *kwargs.values()]).leaves]
    devices = [tensor.device for tensor in (*given, *(tensor for _, tensor in _state(module))) if not tensor.is_meta]
    return devices[0] if devices else torch.device("cpu")


@contextlib.contextmanager
def _as_recorded(module: nn.Module) -> Generator[None]:
    """Without gradients, shortcuts or words, and with the module left as it was."""
    with torch.no_grad(), quietly(), uncompiled(), without_shortcuts(), left_as_it_was(module), undoing_writes(module):
        yield
