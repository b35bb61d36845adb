"""Find the steps of the file whose work each kernel of the graph as run does.

A kernel does the work of the steps between the values that it reads and those that it produces: fusions keep the names
of the values at their borders. A node that kept its name, operator and result is itself. A node that the runtime
inserted belongs to its neighbours. Kernels for which none of this holds stay untraced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sardonyx.measurement.profiling.kernel_names import Names, represented_values
from sardonyx.measurement.profiling.steps import GraphStep, Steps, Values, consumers
from sardonyx.records.profile import TracedBy


class Trace(Struct, frozen=True):
    """The steps of the file whose work a step does, and the evidence for it."""

    steps: frozenset[GraphStep]
    by: TracedBy


NO_WORK = ("Dropout", "Identity")  # the runtime removes them, and the kernels around them do nothing in their place
UNTRACED = Trace(frozenset(), TracedBy.NOTHING)


def trace(run: Steps, file: Steps) -> dict[GraphStep, Trace]:
    """Trace every step of the graph as run to steps of the file, in bodies of control flow too."""
    tracer = Tracer(run, file)
    origins = tracer.by_values()
    tracer.by_names(origins)
    tracer.by_neighbours(origins)
    origins = tracer.with_twins(origins)
    traces: dict[GraphStep, Trace] = {}
    for index, step in enumerate(run.steps):
        indices, by = origins.get(index, (frozenset[int](), TracedBy.NOTHING))
        traces[step] = Trace(frozenset(file.steps[origin] for origin in indices), by)
        traces |= _trace_bodies(step, traces[step])
    return traces


def through(later: Mapping[GraphStep, Trace], earlier: Mapping[GraphStep, Trace]) -> dict[GraphStep, Trace]:
    """Combine traces to an intermediate graph with the traces of that graph."""
    traces: dict[GraphStep, Trace] = {}
    for step, trace_ in later.items():
        back = [earlier.get(middle, UNTRACED) for middle in trace_.steps]
        steps = frozenset[GraphStep]().union(*(origin.steps for origin in back))
        if not steps:
            traces[step] = UNTRACED
        elif trace_.by is TracedBy.NEIGHBOURS:
            traces[step] = Trace(steps, trace_.by)
        else:
            traces[step] = Trace(steps, back[0].by if len(back) == 1 else TracedBy.VALUES)
    return traces


def _trace_bodies(step: GraphStep, holder: Trace) -> dict[GraphStep, Trace]:
    """Trace the steps in a step's bodies to the same body in the file, or otherwise to the node that holds it."""
    traces: dict[GraphStep, Trace] = {}
    origin = next(iter(holder.steps)) if len(holder.steps) == 1 else None
    for name, body in step.bodies.items():
        if origin is not None and name in origin.bodies:
            traces |= trace(body, origin.bodies[name])
        for inner in _all_steps(body):
            if not traces.get(inner, UNTRACED).steps:
                traces[inner] = Trace(holder.steps, TracedBy.NEIGHBOURS) if holder.steps else UNTRACED
    return traces


def _all_steps(graph: Steps) -> Iterable[GraphStep]:
    for step in graph.steps:
        yield step
        for body in step.bodies.values():
            yield from _all_steps(body)


_Origins = dict[int, tuple[frozenset[int], TracedBy]]  # index of a step as run → indices of steps of the file


class Tracer:
    """Traces one graph as run; each kind of evidence adds to the origins that earlier ones found."""

    def __init__(self, run: Steps, file: Steps) -> None:
        self.run, self.file = run, file
        self.values = Values(file)
        self.names = Names(file, self.values)
        self.represented = represented_values(run, self.names, _outside(file, self.values))
        produced = (name for step in run.steps for name in step.outputs)
        self._produced = {self.values.class_of(value) for name in produced for value in self.represented.get(name, ())}

    def by_values(self) -> _Origins:
        """Trace nodes that did not change, and kernels between values of the file."""
        origins: _Origins = {}
        for index, step in enumerate(self.run.steps):
            same = self.names.unchanged(step)
            if same is not None and self._same_outputs(step, self.file.steps[same]):
                origins[index] = frozenset({same}), TracedBy.NAME
            elif between := self.between(step):
                origins[index] = between, TracedBy.VALUES
        return origins

    def by_names(self, origins: _Origins) -> None:
        """Trace kernels whose values are unknown by their names."""
        for index, step in enumerate(self.run.steps):
            if index not in origins and (named := self.names.step(step.name)) is not None:
                origins[index] = frozenset({named}), TracedBy.NAME

    def by_neighbours(self, origins: _Origins) -> None:
        """Trace inserted steps: to their producers if they finish a value of the file, otherwise to their consumers."""
        readers = consumers(self.run)
        producers = {name: index for index, step in enumerate(self.run.steps) for name in step.outputs if name}
        finishing = {
            index
            for index, step in enumerate(self.run.steps)
            if index not in origins and any(name in self.values.producer for name in step.outputs)
        }
        for index in sorted(finishing):
            inputs = self.run.steps[index].inputs
            self._adopt(index, [producers[name] for name in inputs if name in producers], origins)
        for index in reversed(range(len(self.run.steps))):
            if index not in origins:
                outputs = self.run.steps[index].outputs
                self._adopt(index, [user for name in outputs for user in readers.get(name, ())], origins)
        for index, step in enumerate(self.run.steps):
            if index not in origins:
                self._adopt(index, [producers[name] for name in step.inputs if name in producers], origins)

    def _adopt(self, index: int, neighbours: Sequence[int], origins: _Origins) -> None:
        """Give a step the origins of its neighbours, if they have any."""
        steps = frozenset[int]().union(*(origins[neighbour][0] for neighbour in neighbours if neighbour in origins))
        if steps:
            origins[index] = steps, TracedBy.NEIGHBOURS

    def between(self, step: GraphStep) -> frozenset[int]:
        """Return the steps of the file between the values that a step reads and those that it produces."""
        class_of, represented = self.values.class_of, self.represented
        read = {class_of(value) for name in step.inputs for value in represented.get(name, ())}
        targets = {value for name in step.outputs for value in represented.get(name, ()) if class_of(value) not in read}
        own = {class_of(value) for value in targets}  # another kernel that produces the same does not end the search
        steps: set[int] = set()
        named = self.names.unchanged(step)
        if named is not None and targets:
            steps.add(named)  # also if the search below ends before it, at an equal value of another kernel
        for target in targets:
            with_sizes = self.values.is_size(target)
            waiting = [target]
            while waiting:
                producer = self.values.producer.get(waiting.pop())
                if producer is None or producer in steps:
                    continue
                steps.add(producer)
                for name in self.file.steps[producer].inputs:
                    same = class_of(name)
                    reached = same in read or (same in self._produced and same not in own)
                    if name and not reached and (with_sizes or not self.values.is_size(name)):
                        waiting.append(name)
        return frozenset(index for index in steps if self.file.steps[index].op_type not in NO_WORK)

    def with_twins(self, origins: _Origins) -> _Origins:
        """Add equal steps of the file that the runtime merged into the traced ones."""
        traced = {step for indices, _ in origins.values() for step in indices}
        return {
            index: (indices | {twin for step in indices for twin in self.values.twins(step) if twin not in traced}, by)
            for index, (indices, by) in origins.items()
        }

    def _same_outputs(self, step: GraphStep, other: GraphStep) -> bool:
        outputs = [(name, value) for name, value in zip(step.outputs, other.outputs, strict=False) if name]
        return all(self.represented.get(name) == frozenset({value}) for name, value in outputs)


def _outside(file: Steps, values: Values) -> list[str]:
    """Return the values that no step of the graph produces: its inputs, and values of graphs around it."""
    return [name for step in file.steps for name in step.inputs if name and name not in values.producer]
