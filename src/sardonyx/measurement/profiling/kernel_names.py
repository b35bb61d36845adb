"""Relate nodes and values of the graph as run to those of the file by the names that the runtime gives them.

The runtime keeps most names. A fused node gets the name of one of its nodes with a suffix. If the runtime changes the
layout of a value, it names the producer after the value, or the value after its producer. A node that it inserts to
move data represents the same value as its operand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from sardonyx.ir.ops import CASTS, KEEPS_ORDER
from sardonyx.measurement.profiling.steps import GraphStep, Steps, Values, consumers

BLOCKED = "_nchwc"  # suffix of kernels on blocks of channels, after the name of the value they produce
_SUFFIX = re.compile(r"(/+[A-Za-z0-9]*Fusion[A-Za-z0-9]*(_token_\d+)?/*|/+|_new_reshape)$")
_FUSED = "fused "
_INSERTED = frozenset({"MemcpyFromHost", "MemcpyToHost", "ReorderInput", "ReorderOutput"})  # by the runtime
_MOVES = KEEPS_ORDER | CASTS | _INSERTED | {"Transpose"}


class Names:
    """Looks up names of the graph as run among those of the file."""

    def __init__(self, graph: Steps, values: Values) -> None:
        count = Counter(step.name for step in graph.steps)
        self._steps = {
            step.name: index for index, step in enumerate(graph.steps) if step.name and count[step.name] == 1
        }
        self._graph = graph
        self._values = values
        self._readers = consumers(graph)

    def step(self, name: str) -> int | None:
        """Return the step with a name that the runtime may have extended; None if no step or several have it."""
        if name.endswith(BLOCKED) and name not in self._steps:
            return self._values.producer.get(name.removesuffix(BLOCKED))
        while name and name not in self._steps:
            shorter = _SUFFIX.sub("", name).removeprefix(_FUSED)
            if shorter == name:
                return None
            name = shorter
        return self._steps.get(name)

    def unchanged(self, step: GraphStep) -> int | None:
        """Return the step with the same name and operator, or None."""
        index = self._steps.get(step.name)
        return index if index is not None and self._graph.steps[index].operator == step.operator else None

    def stands_for(self, step: GraphStep) -> Mapping[str, str]:
        """Return the value of the file that each output of a step represents, as far as names show it."""
        values = {name: name for name in step.outputs if name in self._values.producer}
        same = self.unchanged(step)
        for place, name in enumerate(step.outputs):
            if not name or name in values:
                continue
            if step.name.endswith(BLOCKED) and (value := step.name.removesuffix(BLOCKED)) in self._values.producer:
                values[name] = value
            elif same is not None and place < len(self._graph.steps[same].outputs):
                values[name] = self._graph.steps[same].outputs[place]
            elif name in self._steps:
                values[name] = self._graph.steps[self._steps[name]].outputs[0]
        return values

    def read(self, index: int) -> frozenset[str]:
        """Return the values that a step reads, without constants and sizes."""
        return frozenset(name for name in self._graph.steps[index].inputs if name and not self._values.is_size(name))

    def onward(self, value: str, has: Set[str], accounts: Accounts) -> str:
        """Return the value after the steps that its producer has absorbed: those that no other kernel accounts for.

        A kernel on blocks of channels absorbs a sum and an activation, and keeps the name of the value before them.

        Args:
            value: The value that the kernel is named after.
            has: The values that the kernel reads.
            accounts: What the other kernels account for.
        """
        inside, taken, waiting = {value}, set[int](), [value]
        while waiting and (last := waiting.pop()) not in accounts.moved:
            for index in self._readers.get(last, ()):
                step = self._graph.steps[index]
                if index in taken or index in accounts.steps or moves(step) or len(step.outputs) != 1:
                    continue
                result = step.outputs[0]
                if result in accounts.values or not self.read(index) <= inside | has:
                    continue
                taken.add(index)
                inside.add(result)
                waiting.append(result)
                leaving = [name for name in inside if not taken.issuperset(self._readers.get(name, ()))]
                if len(leaving) == 1:
                    value = leaving[0]
        return value


class Accounts(Struct, frozen=True):
    """The steps and values of the file that names in the graph as run account for."""

    steps: Set[int]  # that kernels are named after
    values: Set[str]  # produced by kernels that do more than move data
    moved: Set[str]  # produced by kernels that only move data

    @classmethod
    def of(cls, run: Steps, names: Names) -> Accounts:
        """Collect them from the names."""
        values: set[str] = set()
        moved: set[str] = set()
        for step in run.steps:
            (moved if moves(step) else values).update(names.stands_for(step).values())
        named = (names.step(step.name) for step in run.steps)
        return cls({index for index in named if index is not None}, values, moved)


def represented_values(run: Steps, names: Names, outside: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the values of the file that each value of the graph as run represents; values without any are left out.

    Args:
        run: The graph as run.
        names: The names of the file.
        outside: Values that no step of the file produces; they represent themselves.
    """
    values: dict[str, frozenset[str]] = {name: frozenset({name}) for name in outside}
    accounts = Accounts.of(run, names)
    for step in run.steps:
        by_name = names.stands_for(step)
        if step.name.endswith(BLOCKED):
            has = frozenset[str]().union(*(values.get(name, ()) for name in step.inputs))
            by_name = {name: names.onward(value, has, accounts) for name, value in by_name.items()}
        values |= {name: frozenset({value}) for name, value in by_name.items()}
    _add_missing(run, names, values)
    _add_moved(run, values)
    return values


def _add_missing(run: Steps, names: Names, values: dict[str, frozenset[str]]) -> None:
    """If all but one operand of a step are known, conclude that the last is what the step of the file reads beside."""
    done = frozenset[str]().union(*values.values())
    producers = {name: step for step in run.steps for name in step.outputs}
    for step in run.steps:
        unknown = {name for name in step.inputs if name in producers and name not in values}
        if len(unknown) != 1 or (index := names.step(step.name)) is None:
            continue
        name = unknown.pop()
        rest = names.read(index).difference(*(values.get(other, ()) for other in step.inputs))
        if len(rest) == 1 and (moves(producers[name]) or not rest & done):
            values[name] = rest


def _add_moved(run: Steps, values: dict[str, frozenset[str]]) -> None:
    """Let moved data represent what its operand does, and data that is only moved what its consumers represent."""
    for step in run.steps:
        if moves(step) and step.outputs[0] not in values and step.inputs[0] in values:
            values[step.outputs[0]] = values[step.inputs[0]]
    readers = consumers(run)
    for step in reversed(run.steps):
        for name in step.outputs:
            users = [run.steps[index] for index in readers.get(name, ())]
            if not name or name in values or not users:
                continue
            if all(moves(user) and user.outputs[0] in values for user in users):
                values[name] = frozenset[str]().union(*(values[user.outputs[0]] for user in users))


def moves(step: GraphStep) -> bool:
    """Return whether a step only moves data."""
    return step.op_type in _MOVES and bool(step.inputs) and bool(step.outputs)
