"""Which nodes a module consists of, and what crosses its boundary: the rules of decision 0005."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.errors import ModelError
from sardonyx.ir.dataflow import Dataflow, Dependence
from sardonyx.ir.origins import origins
from sardonyx.ir.scopes import bodies, is_constant, label
from sardonyx.provenance import ROOT, Origins, is_within, lineage, lowest_common, merge, module_of

# How values flow between the nodes of a model's main graph: who reads what, and what is nothing but sizes.
#
# A node with bodies (If, Loop, Scan) counts as one with everything inside it: it reads what its bodies capture and
# comes
# from where their nodes come from.


class Flow:
    """The main graph of one model, whose nodes know their origins; nothing is changed."""

    def __init__(self, model: ir.Model) -> None:
        self.nodes = tuple(model.graph)
        self.outputs = frozenset(model.graph.outputs)
        self.reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
        self.readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
        self.origins: dict[ir.Node, Origins] = {}
        self._flow = Dataflow()
        for node in self.nodes:
            within = list(_nodes_inside(node))
            self.reads[node] = tuple(dict.fromkeys(_read(node)))
            self.origins[node] = merge(map(origins, (node, *within))) if within else origins(node)
            for value in self.reads[node]:
                self.readers[value].append(node)
            if node.domain in ("", "ai.onnx"):  # results of other operators count as data
                self._flow.visit(node)

    def is_size(self, value: ir.Value) -> bool:
        """Whether a value follows from constants and from the sizes of other values."""
        return self._flow.of(value) is not Dependence.DATA

    def only_sizes(self, node: ir.Node) -> bool:
        """Whether all that a node makes are constants and sizes."""
        return all(map(self.is_size, node.outputs))

    def above(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """All nodes whose results some of these nodes need."""
        return _reach(start, self._makers)

    def below(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """All nodes that need results of some of these nodes."""
        return _reach(start, self.users)

    def users(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes that read a node's results."""
        return (reader for output in node.outputs for reader in self.readers.get(output, ()))

    def _makers(self, node: ir.Node) -> Iterator[ir.Node]:
        return (maker for value in self.reads[node] if (maker := value.producer()) is not None)


def is_fixed(value: ir.Value) -> bool:
    """Whether a value is a constant of the file that no caller can override."""
    return value.is_initializer() and not value.is_graph_input()


def _reach(start: Iterable[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    found: set[ir.Node] = set()
    waiting = list(start)
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    for _, body in bodies(node):
        for inner in body:
            yield inner
            yield from _nodes_inside(inner)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, and then what its bodies read from outside of them."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        own = {*body.inputs, *body.initializers.values(), *(value for inner in body for value in inner.outputs)}
        for inner in body:
            yield from (value for value in _read(inner) if value not in own)


_SHOWN = 5  # nodes in a message
Dims = Callable[[ir.Value], tuple[int | str | None, ...] | None]  # as a file would declare them


@dataclass(frozen=True, slots=True)
class StandIn:
    """An input of the cut whose dims from `start` to `end` are those that a Shape outside of it measures."""

    value: ir.Value
    start: int
    end: int
    sliced: bool  # not all of them


@dataclass(frozen=True, slots=True)
class Region:
    """The nodes of a module, those that are repeated beside them, and the values on the boundary."""

    inside: frozenset[ir.Node]
    repeated: frozenset[ir.Node]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    stand_ins: Mapping[ir.Node, StandIn] = field(default_factory=dict[ir.Node, StandIn])  # of repeated Shapes


def calls(flow: Flow, module: str) -> list[str]:
    """The module's path with the marks of each of its calls, in order; without marks for the model itself."""
    depth = module.count(".") + 1
    found = {".".join(origin.split(".")[:depth]) for origins in flow.origins.values() for origin in origins}
    return sorted((path for path in found if module_of(path) == module), key=_marks) if module != ROOT else [ROOT]


def _marks(path: str) -> list[int]:
    return [int(part.rpartition("@")[2]) if "@" in part else 0 for part in path.split(".")]


def settle(flow: Flow, place: str, *, exact: bool) -> tuple[str, frozenset[ir.Node], list[ir.Node]]:
    """The nearest module that can be cut out, its nodes, and the nodes that made it wider."""
    met: dict[ir.Node, None] = {}
    while True:
        inside, straddling = members(flow, place)
        if not straddling:
            return place, inside, list(met)
        if exact:
            raise ModelError(
                f"{place} cannot be cut out exactly: {_shown(straddling)} also does the work of other modules",
                hint="without `exact` the nearest module that contains it is taken; the unoptimized file has it apart",
            )
        met.update(dict.fromkeys(straddling))
        wider = lowest_common([place, *(origin for node in straddling for origin in flow.origins[node])])
        place = wider if wider != place and is_within(place, wider) else place.rpartition(".")[0]


def _shown(nodes: Sequence[ir.Node]) -> str:
    return ", ".join(map(label, nodes[:_SHOWN])) + (" …" if len(nodes) > _SHOWN else "")


def is_whole(flow: Flow, inside: frozenset[ir.Node]) -> bool:
    """Whether nothing that computes is left out."""
    return all(node in inside or flow.only_sizes(node) for node in flow.nodes)


def refusal(flow: Flow, place: str, straddling: Sequence[ir.Node]) -> ModelError:
    """Why a module cannot be cut out of a file, and which module nearest to it can."""
    found = sorted({above for origins in flow.origins.values() for each in origins for above in lineage(each)[1:]})
    nearest = sorted(found, key=lambda path: (-_shared(path, place), path.count(".")))
    other = next((path for path in nearest if not is_within(place, path) and not members(flow, path)[1]), None)
    can = f"{module_of(other)} can be cut out; " if other is not None else ""
    return ModelError(
        f"only the whole model contains {place}: {_shown(straddling)} also does the work of other modules",
        hint=f"{can}optimizing with `keep_modules={module_of(place)}` leaves it apart",
    )


def _shared(path: str, place: str) -> int:
    """How many modules around a place a path is inside of as well."""
    return sum(one == other for one, other in zip(path.split("."), place.split("."), strict=False))


def members(flow: Flow, place: str) -> tuple[frozenset[ir.Node], list[ir.Node]]:
    """The nodes that do the module's work, and those that do it only together with others' work."""
    if place == ROOT:
        return frozenset(flow.nodes), []
    inside: set[ir.Node] = set()
    mixed: list[ir.Node] = []
    for node, paths in flow.origins.items():
        within = [is_within(path, place) for path in paths]
        if within and all(within):
            inside.add(node)
        elif any(within) and not flow.only_sizes(node):
            mixed.append(node)
    if not mixed:
        return frozenset(inside), []
    needed, fed = flow.above(inside), flow.below(inside)
    private: set[ir.Node] = set()  # what the module alone reads
    for node in reversed(mixed):
        read_outside = any(user not in inside and user not in private for user in flow.users(node))
        if not read_outside and flow.outputs.isdisjoint(node.outputs):
            private.add(node)
    shared = {node for node in mixed if node in needed and (node in fed or node not in private)}
    return frozenset(inside | (shared & fed)), [node for node in mixed if node not in shared]


def bounded(flow: Flow, inside: frozenset[ir.Node], dims: Dims, *, slicing: bool) -> Region:
    """What the nodes need from elsewhere, and what of theirs is needed there; a constant is needed from nobody.

    `slicing` says that a Shape may measure some of the dims.
    """
    ordered = [node for node in flow.nodes if node in inside]
    made = dict.fromkeys(output for node in ordered for output in node.outputs)
    needed = dict.fromkeys(value for node in ordered for value in flow.reads[node] if value not in made)
    tensors = [value for value in needed if not flow.is_size(value)]
    sizes = _Sizes(flow, {*made, *tensors}, tensors, dims, slicing=slicing)
    inputs = [value for value in needed if not is_fixed(value) and not (flow.is_size(value) and sizes.repeat(value))]
    results = [value for node in ordered if not is_constant(node) for value in node.outputs if value.name]
    outputs = [value for value in results if _leaves(flow, value, inside, sizes.repeated)]
    ends = [value for value in results if not flow.readers.get(value)]
    return Region(
        inside, frozenset(sizes.repeated), tuple(inputs), tuple(outputs or ends or made), dict(sizes.stand_ins)
    )


class _Sizes:
    """Repeats arithmetic on sizes beside a module, as far as its own values and inputs give the sizes away."""

    def __init__(
        self, flow: Flow, had: set[ir.Value], tensors: Sequence[ir.Value], dims: Dims, *, slicing: bool
    ) -> None:
        self._flow, self._had, self._tensors, self._dims = flow, had, tensors, dims
        self._slicing = slicing
        self.repeated: set[ir.Node] = set()
        self.stand_ins: dict[ir.Node, StandIn] = {}

    def repeat(self, value: ir.Value) -> bool:
        """Repeat what computes a size; where something else is needed the size has to be given, and then is there."""
        nodes: set[ir.Node] = set()
        found: dict[ir.Node, StandIn] = {}
        waiting = [value]
        while waiting:
            one = waiting.pop()
            maker = one.producer()
            if one in self._had or is_fixed(one) or maker in nodes:
                continue
            if maker is None or not self._flow.only_sizes(maker):
                self._had.add(value)
                return False
            nodes.add(maker)
            stand_in = self._stand_in(maker)
            if stand_in is None:
                waiting.extend(self._flow.reads[maker])
            else:
                found[maker] = stand_in
        self.repeated |= nodes
        self.stand_ins |= found
        return True

    def _stand_in(self, node: ir.Node) -> StandIn | None:
        """For a Shape of a value that is not here: an input that has the same dims in a row."""
        measured = node.inputs[0] if node.op_type == "Shape" else None
        if measured is None or measured in self._had or self._flow.is_size(measured):
            return None
        start, end = node.attributes.get("start"), node.attributes.get("end")
        bounds = slice(None if start is None else start.as_int(), None if end is None else end.as_int())
        part = (self._dims(measured) or ())[bounds]
        if not part or None in part:
            return None
        for tensor in self._tensors:
            known = self._dims(tensor) or ()
            for place in range(len(known) - len(part) + 1):
                sliced = len(known) > len(part)
                if known[place : place + len(part)] == part and (self._slicing or not sliced):
                    return StandIn(tensor, place, place + len(part), sliced)
        return None


def _leaves(flow: Flow, value: ir.Value, inside: frozenset[ir.Node], repeated: set[ir.Node]) -> bool:
    """Whether a value is needed outside; a size that is computed again inside is no use outside by itself."""
    if value in flow.outputs:
        return True
    outside = [reader for reader in flow.readers.get(value, ()) if reader not in inside]
    return any(
        reader not in repeated or any(_leaves(flow, output, inside, repeated) for output in reader.outputs)
        for reader in outside
    )


def whole(model: ir.Model, flow: Flow) -> Region:
    """All of the model, with the interface it has."""
    return Region(frozenset(flow.nodes), frozenset(), tuple(model.graph.inputs), tuple(model.graph.outputs))
