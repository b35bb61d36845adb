"""What names that the runtime gives tell: which node a kernel was made from, and which value a new one stands for.

The runtime keeps most names. Where it fuses, it takes the name of one of the nodes and adds a word; where it changes
the layout of a value it names the maker after the value, or the value after its maker; what it puts in between to move
data about has no more meaning than what it moves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from sardonyx.ir.ops import CASTS, KEEPS_ORDER
from sardonyx.measurement.profiling.steps import GraphStep, Steps
from sardonyx.measurement.profiling.value_equivalence import Values, consumers

BLOCKED = "_nchwc"  # after the value that a kernel on blocks of channels makes
_ADDED = re.compile(r"(/+[A-Za-z0-9]*Fusion[A-Za-z0-9]*(_token_\d+)?/*|/+|_new_reshape)$")
_FUSED = "fused "
_INSERTED = frozenset({"MemcpyFromHost", "MemcpyToHost", "ReorderInput", "ReorderOutput"})  # by the runtime
_MOVES = KEEPS_ORDER | CASTS | _INSERTED | {"Transpose"}


class Names:
    """Names of a graph, to look up those of the graph that the runtime made of it."""

    def __init__(self, graph: Steps, values: Values) -> None:
        count = Counter(step.name for step in graph.steps)
        self._steps = {
            step.name: index for index, step in enumerate(graph.steps) if step.name and count[step.name] == 1
        }
        self._graph = graph
        self._values = values
        self._readers = consumers(graph)

    def step(self, name: str) -> int | None:
        """The step that goes by a name, or by one that the runtime made this name of; None where none or several do."""
        if name.endswith(BLOCKED) and name not in self._steps:
            return self._values.maker.get(name.removesuffix(BLOCKED))
        while name and name not in self._steps:
            shorter = _ADDED.sub("", name).removeprefix(_FUSED)
            if shorter == name:
                return None
            name = shorter
        return self._steps.get(name)

    def unchanged(self, step: GraphStep) -> int | None:
        """The step that has the same name and does the same."""
        index = self._steps.get(step.name)
        return index if index is not None and self._graph.steps[index].operator == step.operator else None

    def stands_for(self, step: GraphStep) -> Mapping[str, str]:
        """Which of our values the outputs of a step stand for, as far as its name and theirs tell."""
        found = {name: name for name in step.outputs if name in self._values.maker}
        like = self.unchanged(step)
        for place, name in enumerate(step.outputs):
            if not name or name in found:
                continue
            if step.name.endswith(BLOCKED) and (value := step.name.removesuffix(BLOCKED)) in self._values.maker:
                found[name] = value
            elif like is not None and place < len(self._graph.steps[like].outputs):
                found[name] = self._graph.steps[like].outputs[place]
            elif name in self._steps:
                found[name] = self._graph.steps[self._steps[name]].outputs[0]
        return found

    def read(self, index: int) -> frozenset[str]:
        """What a step reads, constants and sizes aside."""
        return frozenset(name for name in self._graph.steps[index].inputs if name and not self._values.is_size(name))

    def onward(self, value: str, has: Set[str], accounts: Accounts) -> str:
        """What a value has become once its maker has done what follows too: steps that nobody else does any more.

        A kernel on blocks of channels takes a sum and an activation in, and keeps the name of the value before them.
        """
        inside, taken, waiting = {value}, set[int](), [value]
        while waiting and (last := waiting.pop()) not in accounts.moved:
            for index in self._readers.get(last, ()):
                step = self._graph.steps[index]
                if index in taken or index in accounts.steps or moves(step) or len(step.outputs) != 1:
                    continue
                made = step.outputs[0]
                if made in accounts.values or not self.read(index) <= inside | has:
                    continue
                taken.add(index)
                inside.add(made)
                waiting.append(made)
                leaving = [name for name in inside if not taken.issuperset(self._readers.get(name, ()))]
                if len(leaving) == 1:
                    value = leaving[0]
        return value


@dataclass(frozen=True, slots=True)
class Accounts:
    """What of ours the names in the graph as run account for."""

    steps: Set[int]  # that kernels are named after
    values: Set[str]  # that kernels make which do more than move data about
    moved: Set[str]  # that are made by moving data about

    @classmethod
    def of(cls, run: Steps, names: Names) -> Accounts:
        """All that the names tell."""
        values: set[str] = set()
        moved: set[str] = set()
        for step in run.steps:
            (moved if moves(step) else values).update(names.stands_for(step).values())
        named = (names.step(step.name) for step in run.steps)
        return cls({index for index in named if index is not None}, values, moved)


def standing(run: Steps, names: Names, known: Sequence[str]) -> dict[str, frozenset[str]]:
    """For each value of the graph as run, the values of ours that it stands for; nothing where nobody can tell."""
    found: dict[str, frozenset[str]] = {name: frozenset({name}) for name in known}
    accounts = Accounts.of(run, names)
    for step in run.steps:
        said = names.stands_for(step)
        if step.name.endswith(BLOCKED):
            has = frozenset[str]().union(*(found.get(name, ()) for name in step.inputs))
            said = {name: names.onward(value, has, accounts) for name, value in said.items()}
        found |= {name: frozenset({value}) for name, value in said.items()}
    _missing(run, names, found)
    _moved(run, found)
    return found


def _missing(run: Steps, names: Names, found: dict[str, frozenset[str]]) -> None:
    """Where all but one of the values that a step reads are known, the last is what our step reads beside them."""
    done = frozenset[str]().union(*found.values())
    makers = {name: step for step in run.steps for name in step.outputs}
    for step in run.steps:
        unknown = {name for name in step.inputs if name in makers and name not in found}
        if len(unknown) != 1 or (index := names.step(step.name)) is None:
            continue
        name = unknown.pop()
        rest = names.read(index).difference(*(found.get(other, ()) for other in step.inputs))
        if len(rest) == 1 and (moves(makers[name]) or not rest & done):
            found[name] = rest


def _moved(run: Steps, found: dict[str, frozenset[str]]) -> None:
    """What is moved about stands for what it was, and what is only there to be moved for what it becomes."""
    for step in run.steps:
        if moves(step) and step.outputs[0] not in found and step.inputs[0] in found:
            found[step.outputs[0]] = found[step.inputs[0]]
    readers = consumers(run)
    for step in reversed(run.steps):
        for name in step.outputs:
            users = [run.steps[index] for index in readers.get(name, ())]
            if name and name not in found and users and all(moves(user) and user.outputs[0] in found for user in users):
                found[name] = frozenset[str]().union(*(found[user.outputs[0]] for user in users))


def moves(step: GraphStep) -> bool:
    """Whether a step only moves data about."""
    return step.op_type in _MOVES and bool(step.inputs) and bool(step.outputs)
