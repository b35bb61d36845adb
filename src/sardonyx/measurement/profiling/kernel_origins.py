"""Which steps of the file the kernels of the graph as run do the work of.

A kernel does what lies, in the file, between the values that it reads and those that it makes: fusions keep the names
of the values at their borders. A node that kept name, operator and result is itself. What the runtime put in between
belongs to what it serves. Nothing is guessed: what none of this tells of stays untraced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.measurement.profiling.kernel_names import Names, standing
from sardonyx.measurement.profiling.steps import GraphStep, Steps
from sardonyx.measurement.profiling.value_equivalence import Values, consumers
from sardonyx.records.profile import TracedBy


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of the file whose work a step does, and what told so."""

    steps: frozenset[GraphStep]
    by: TracedBy


_NO_WORK = ("Dropout", "Identity")  # the runtime runs none of them, and whoever takes their place does nothing more
UNTRACED = Trace(frozenset(), TracedBy.NOTHING)


def trace(run: Steps, file: Steps) -> dict[GraphStep, Trace]:
    """Where each step of the graph as run comes from, in bodies of control flow too."""
    tracer = Tracer(run, file)
    places = tracer.by_values()
    tracer.by_names(places)
    tracer.by_neighbours(places)
    places = tracer.with_twins(places)
    found: dict[GraphStep, Trace] = {}
    for index, step in enumerate(run.steps):
        indices, by = places.get(index, (frozenset[int](), TracedBy.NOTHING))
        found[step] = Trace(frozenset(file.steps[each] for each in indices), by)
        found |= _in_bodies(step, found[step])
    return found


def through(later: Mapping[GraphStep, Trace], earlier: Mapping[GraphStep, Trace]) -> dict[GraphStep, Trace]:
    """Traces to a graph in between, carried on to where that came from."""
    found: dict[GraphStep, Trace] = {}
    for step, trace_ in later.items():
        back = [earlier.get(each, UNTRACED) for each in trace_.steps]
        steps = frozenset[GraphStep]().union(*(each.steps for each in back))
        if not steps:
            found[step] = UNTRACED
        elif trace_.by is TracedBy.NEIGHBOURS:
            found[step] = Trace(steps, trace_.by)
        else:
            found[step] = Trace(steps, back[0].by if len(back) == 1 else TracedBy.VALUES)
    return found


def _in_bodies(step: GraphStep, holder: Trace) -> dict[GraphStep, Trace]:
    """Traces of the steps in a step's bodies: to those of the same body in the file, or else to what holds it."""
    found: dict[GraphStep, Trace] = {}
    origin = next(iter(holder.steps)) if len(holder.steps) == 1 else None
    for name, body in step.bodies.items():
        if origin is not None and name in origin.bodies:
            found |= trace(body, origin.bodies[name])
        for inner in _all(body):
            if not found.get(inner, UNTRACED).steps:
                found[inner] = Trace(holder.steps, TracedBy.NEIGHBOURS) if holder.steps else UNTRACED
    return found


def _all(graph: Steps) -> Iterable[GraphStep]:
    for step in graph.steps:
        yield step
        for body in step.bodies.values():
            yield from _all(body)


_Places = dict[int, tuple[frozenset[int], TracedBy]]  # step as run -> steps of the file


class Tracer:
    """One graph as run beside the graph of the file; each kind of evidence adds to what those before it found."""

    def __init__(self, run: Steps, file: Steps) -> None:
        self.run, self.file = run, file
        self.values = Values(file)
        self.names = Names(file, self.values)
        self.stands = standing(run, self.names, _from_outside(file, self.values))
        made = (name for step in run.steps for name in step.outputs)
        self._made = {self.values.like(value) for name in made for value in self.stands.get(name, ())}

    def by_values(self) -> _Places:
        """Nodes that are what they were, and kernels between values of the file."""
        found: _Places = {}
        for index, step in enumerate(self.run.steps):
            same = self.names.unchanged(step)
            if same is not None and self._makes_the_same(step, self.file.steps[same]):
                found[index] = frozenset({same}), TracedBy.NAME
            elif between := self.between(step):
                found[index] = between, TracedBy.VALUES
        return found

    def by_names(self, found: _Places) -> None:
        """Kernels of which no value is known, and whose name is."""
        for index, step in enumerate(self.run.steps):
            if index not in found and (named := self.names.step(step.name)) is not None:
                found[index] = frozenset({named}), TracedBy.NAME

    def by_neighbours(self, found: _Places) -> None:
        """What the runtime put in: a step that gives a value of the file its form belongs to what makes that value."""
        readers = consumers(self.run)
        makers = {name: index for index, step in enumerate(self.run.steps) for name in step.outputs if name}
        finishing = {
            index
            for index, step in enumerate(self.run.steps)
            if index not in found and any(name in self.values.maker for name in step.outputs)
        }
        for index in sorted(finishing):
            self._adopt(index, [makers[name] for name in self.run.steps[index].inputs if name in makers], found)
        for index in reversed(range(len(self.run.steps))):
            if index not in found:
                outputs = self.run.steps[index].outputs
                self._adopt(index, [user for name in outputs for user in readers.get(name, ())], found)
        for index, step in enumerate(self.run.steps):
            if index not in found:
                self._adopt(index, [makers[name] for name in step.inputs if name in makers], found)

    def _adopt(self, index: int, around: Sequence[int], found: _Places) -> None:
        near = frozenset[int]().union(*(found[each][0] for each in around if each in found))
        if near:
            found[index] = near, TracedBy.NEIGHBOURS

    def between(self, step: GraphStep) -> frozenset[int]:
        """The steps of the file between what a step reads and what it makes."""
        like = self.values.like
        read = {like(value) for name in step.inputs for value in self.stands.get(name, ())}
        targets = {value for name in step.outputs for value in self.stands.get(name, ()) if like(value) not in read}
        makes = {like(value) for value in targets}  # its own: others with the same name for it do not stop the search
        found: set[int] = set()
        for target in targets:
            sizes_too = self.values.is_size(target)
            waiting = [target]
            while waiting:
                maker = self.values.maker.get(waiting.pop())
                if maker is None or maker in found:
                    continue
                found.add(maker)
                for name in self.file.steps[maker].inputs:
                    same = like(name)
                    known = same in read or (same in self._made and same not in makes)
                    if name and not known and (sizes_too or not self.values.is_size(name)):
                        waiting.append(name)
        return frozenset(index for index in found if self.file.steps[index].op_type not in _NO_WORK)

    def with_twins(self, found: _Places) -> _Places:
        """Add to steps those equal to them that the runtime dropped for them."""
        traced = {each for indices, _ in found.values() for each in indices}
        return {
            index: (indices | {twin for each in indices for twin in self.values.twins(each) if twin not in traced}, by)
            for index, (indices, by) in found.items()
        }

    def _makes_the_same(self, step: GraphStep, other: GraphStep) -> bool:
        outputs = [(name, wanted) for name, wanted in zip(step.outputs, other.outputs, strict=False) if name]
        return all(self.stands.get(name) == frozenset({wanted}) for name, wanted in outputs)


def _from_outside(file: Steps, values: Values) -> list[str]:
    """What steps read that no step of the graph makes: its inputs, and values of graphs around it."""
    return [name for step in file.steps for name in step.inputs if name and name not in values.maker]
