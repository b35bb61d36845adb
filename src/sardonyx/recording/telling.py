"""What was entered in the book as a Program: torch's sizes as ours, and what each operation is and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch

from sardonyx.costs.operators.aten import describe
from sardonyx.costs.program import Buffer, Operation, Program, Value
from sardonyx.graph.shapes.expr import Size
from sardonyx.recording.book import Book, Step
from sardonyx.recording.workspaces import Machine, workspace

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

    def operation(self, step: Step) -> Operation:
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

    def _channels_last(self, step: Step) -> bool:
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
