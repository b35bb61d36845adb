"""Find the steps of the file whose work each kernel of the graph as run does.

A kernel does the work of the steps between the values that it reads and those that it produces: fusions keep the names
of the values at their borders. A node that kept its name, operator and result is itself. A node that the runtime
inserted belongs to its neighbours. Kernels for which none of this holds stay untraced.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.facts import SMALL_CONSTANT_BYTES, Dependence, constant_tensor, dependence
from sardonyx.ir.ops import CASTS, KEEPS_ORDER, RANDOM
from sardonyx.ir.scopes import bodies, is_constant
from sardonyx.records.bench import TracedBy

_NEVER_EQUAL = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.SPARSE_TENSOR)


class GraphStep(Struct, frozen=True, eq=False):
    """One node."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]  # "" for an omitted one
    outputs: tuple[str, ...]
    bodies: Mapping[str, Steps]  # by attribute
    equality: Hashable = None  # equal for steps that compute the same from the same inputs; None: equal to no other
    node: ir.Node | None = None  # in the graph of a file
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # attributes that begin with two underscores

    @property
    def operator(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


class Steps(Struct, frozen=True, eq=False, dict=True):
    """One graph, with its steps in order; constants are not steps."""

    steps: Sequence[GraphStep]
    constants: Mapping[str, Hashable]  # name → a key that is equal for equal contents

    @functools.cached_property
    def producers(self) -> Mapping[str, int]:
        """The step that produces each value."""
        return {name: index for index, step in enumerate(self.steps) for name in step.outputs if name}

    @functools.cached_property
    def readers(self) -> Mapping[str, Sequence[int]]:
        """The steps that read each value, in their bodies too."""
        readers: dict[str, list[int]] = defaultdict(list)
        for index, step in enumerate(self.steps):
            inside = (name for body in step.bodies.values() for name in body.readers)
            for name in dict.fromkeys((*step.inputs, *inside)):
                if name:
                    readers[name].append(index)
        return readers


def of_file(graph: ir.Graph) -> Steps:
    """Return the steps of a graph that was read from a file."""
    constants = {name: _content(value.const_value, name) for name, value in graph.initializers.items()}
    steps: list[GraphStep] = []
    for node in graph:
        outputs = tuple(value.name or "" for value in node.outputs)
        if is_constant(node):
            constants[outputs[0]] = _content(constant_tensor(node), outputs[0])
            continue
        inputs = tuple(value.name or "" if value is not None else "" for value in node.inputs)
        inside = {name: of_file(body) for name, body in bodies(node)}
        steps.append(
            GraphStep(
                node.name or "", node.op_type, _plain(node.domain), inputs, outputs, inside, _equality(node), node
            )
        )
    return Steps(steps, constants)


def as_run(path: Path) -> Steps:
    """Return the steps of the optimized graph that the runtime saved; its weights are not read."""
    return _of_proto(onnx.ModelProto.FromString(path.read_bytes()).graph)


def _of_proto(graph: onnx.GraphProto) -> Steps:
    steps: list[GraphStep] = []
    for node in graph.node:
        inside = {attr.name: _of_proto(attr.g) for attr in node.attribute if attr.type == onnx.AttributeProto.GRAPH}
        tags = {attr.name: attr.s.decode(errors="replace") for attr in node.attribute if attr.name.startswith("__")}
        domain, inputs, outputs = _plain(node.domain), tuple(node.input), tuple(node.output)
        steps.append(GraphStep(node.name, node.op_type, domain, inputs, outputs, inside, tags=tags))
    return Steps(steps, {tensor.name: tensor.name for tensor in graph.initializer})


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _equality(node: ir.Node) -> Hashable:
    """Return what must be equal, besides the inputs, for the runtime to merge two nodes; None if it never does."""
    if node.op_type in RANDOM:
        return None
    attributes: list[Hashable] = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in _NEVER_EQUAL or attribute.is_ref():
            return None
        value: Any = attribute.value
        attributes.append((name, _content(value, name) if isinstance(value, ir.TensorProtocol) else repr(value)))
    return node.op_type, node.domain, len(node.outputs), tuple(attributes)


def _content(tensor: ir.TensorProtocol | None, name: str) -> Hashable:
    """Return the contents of a small tensor, or the name of a large one, which is not read."""
    if tensor is None or tensor.nbytes > SMALL_CONSTANT_BYTES or isinstance(tensor, ir.StringTensor):
        return name
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


# The runtime computes equal steps once, and folds what depends on constants and sizes alone before the run, so that
# such steps are not part of the work of a kernel.


class Values:
    """The values of one graph; values of graphs around it are unknown here."""

    def __init__(self, graph: Steps) -> None:
        self._classes: dict[str, Hashable] = dict(graph.constants)
        self._sizes: set[str] = set(graph.constants)
        self._twins: dict[int, Sequence[int]] = {}
        self._keys: dict[Hashable, int] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(graph.steps):
            groups[self._number(index, step)].append(index)
        for members in groups.values():
            if len(members) > 1:
                self._twins |= dict.fromkeys(members, members)

    def _number(self, index: int, step: GraphStep) -> int:
        """Assign classes to a step's outputs, and return the class of the step, which equal steps share."""
        same: Hashable = index
        if step.equality is not None and not step.bodies:
            same = (step.equality, tuple(self.class_of(name) for name in step.inputs))
        key = self._keys.setdefault(same, len(self._keys))  # a number, because nested keys would grow without bound
        sizes = all(name in self._sizes for name in step.inputs if name)
        operands = Dependence.SIZE if sizes else Dependence.DATA
        depends = dependence(step.op_type, operands, has_bodies=bool(step.bodies))
        for place, name in enumerate(step.outputs):
            if name:
                self._classes[name] = self.class_of(step.inputs[0]) if step.op_type == "Identity" else (key, place)
                if depends is not Dependence.DATA and step.inputs:
                    self._sizes.add(name)
        return key

    def class_of(self, name: str) -> Hashable:
        """Return the class of a value, which equal values share."""
        return self._classes.get(name, name)

    def is_size(self, name: str) -> bool:
        """Return whether a value depends on constants and sizes alone."""
        return name in self._sizes

    def twins(self, index: int) -> Sequence[int]:
        """Return the steps equal to one, including itself."""
        return self._twins.get(index, (index,))


# Relate nodes and values of the graph as run to those of the file by the names that the runtime gives them.
#
# The runtime keeps most names. A fused node gets the name of one of its nodes with a suffix. If the runtime changes the
# layout of a value, it names the producer after the value, or the value after its producer. A node that it inserts to
# move data represents the same value as its operand.

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

    def step(self, name: str) -> int | None:
        """Return the step with a name that the runtime may have extended; None if no step or several have it."""
        if name.endswith(BLOCKED) and name not in self._steps:
            return self._graph.producers.get(name.removesuffix(BLOCKED))
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
        values = {name: name for name in step.outputs if name in self._graph.producers}
        same = self.unchanged(step)
        for place, name in enumerate(step.outputs):
            if not name or name in values:
                continue
            if step.name.endswith(BLOCKED) and (value := step.name.removesuffix(BLOCKED)) in self._graph.producers:
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

        A kernel on blocks of channels absorbs a sum and an activation, and keeps the name of the value before them. It
        reads the values that it `has`.
        """
        inside, taken, waiting = {value}, set[int](), [value]
        while waiting and (last := waiting.pop()) not in accounts.moved:
            for index in self._graph.readers.get(last, ()):
                step = self._graph.steps[index]
                if index in taken or index in accounts.steps or moves(step) or len(step.outputs) != 1:
                    continue
                result = step.outputs[0]
                if result in accounts.values or not self.read(index) <= inside | has:
                    continue
                taken.add(index)
                inside.add(result)
                waiting.append(result)
                leaving = [name for name in inside if not taken.issuperset(self._graph.readers.get(name, ()))]
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

    Values from `outside`, which no step of the file produces, represent themselves.
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
    for step in run.steps:
        unknown = {name for name in step.inputs if name in run.producers and name not in values}
        if len(unknown) != 1 or (index := names.step(step.name)) is None:
            continue
        name = unknown.pop()
        rest = names.read(index).difference(*(values.get(other, ()) for other in step.inputs))
        if len(rest) == 1 and (moves(run.steps[run.producers[name]]) or not rest & done):
            values[name] = rest


def _add_moved(run: Steps, values: dict[str, frozenset[str]]) -> None:
    """Let moved data represent what its operand does, and data that is only moved what its consumers represent."""
    for step in run.steps:
        if moves(step) and step.outputs[0] not in values and step.inputs[0] in values:
            values[step.outputs[0]] = values[step.inputs[0]]
    for step in reversed(run.steps):
        for name in step.outputs:
            users = [run.steps[index] for index in run.readers.get(name, ())]
            if not name or name in values or not users:
                continue
            if all(moves(user) and user.outputs[0] in values for user in users):
                values[name] = frozenset[str]().union(*(values[user.outputs[0]] for user in users))


def moves(step: GraphStep) -> bool:
    """Return whether a step only moves data."""
    return step.op_type in _MOVES and bool(step.inputs) and bool(step.outputs)


class Trace(Struct, frozen=True):
    """The steps of the file whose work a step does, and the evidence for it."""

    steps: frozenset[GraphStep]
    by: TracedBy


NO_WORK = ("Dropout", "Identity")  # the runtime removes them, and the kernels around them do nothing in their place
UNTRACED = Trace(frozenset(), TracedBy.NOTHING)


def trace(run: Steps, file: Steps) -> dict[GraphStep, Trace]:
    """Trace every step of the graph as run to steps of the file, in bodies of control flow too."""
    tracer = Tracer(run, file)
    origins = tracer.by_values_or_names()
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
        read = (name for step in file.steps for name in step.inputs if name)
        outside = [name for name in read if name not in file.producers]  # inputs, and values of graphs around it
        self.represented = represented_values(run, self.names, outside)
        produced = (name for step in run.steps for name in step.outputs)
        self._produced = {self.values.class_of(value) for name in produced for value in self.represented.get(name, ())}

    def by_values_or_names(self) -> _Origins:
        """Trace nodes that did not change, kernels between values of the file, and other kernels by their names."""
        origins: _Origins = {}
        for index, step in enumerate(self.run.steps):
            same, named = self.names.unchanged(step), self.names.step(step.name)
            if same is not None and self._same_outputs(step, self.file.steps[same]):
                origins[index] = frozenset({same}), TracedBy.NAME
            elif between := self.between(step):
                origins[index] = between, TracedBy.VALUES
            elif named is not None:
                origins[index] = frozenset({named}), TracedBy.NAME
        return origins

    def by_neighbours(self, origins: _Origins) -> None:
        """Trace inserted steps: to their producers if they finish a value of the file, otherwise to their consumers."""
        run, everywhere = self.run, range(len(self.run.steps))

        def before(index: int) -> Iterable[int]:
            return (run.producers[name] for name in run.steps[index].inputs if name in run.producers)

        def after(index: int) -> Iterable[int]:
            return (user for name in run.steps[index].outputs for user in run.readers.get(name, ()))

        finishing = [
            index for index in everywhere if not self.file.producers.keys().isdisjoint(run.steps[index].outputs)
        ]
        for indices, neighbours in ((finishing, before), (reversed(everywhere), after), (everywhere, before)):
            for index in indices:
                if index not in origins:
                    known = (origins[neighbour][0] for neighbour in neighbours(index) if neighbour in origins)
                    if steps := frozenset[int]().union(*known):
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
                producer = self.file.producers.get(waiting.pop())
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
