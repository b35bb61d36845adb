"""What a module contains, as nodes and edges and as a Mermaid diagram."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.errors import UsageError
from sardonyx.records.inspection import HierarchyDag
from sardonyx.records.run import Run, Wiring
from sardonyx.reporting import formatting as fmt

DEEPEST = 32  # steps of a path; deeper nodes are drawn at this level
_Key = tuple[str, str]


class Part(Struct, frozen=True):
    """One box: a node of the module itself, a module below it, or a neighbour that it reads from or writes to."""

    kind: Literal["op", "module", "port"]
    text: str
    name: str = ""  # of a node, or of an input or output of the model
    path: str | None = None  # of the module, or of the neighbour's


class ModuleContents(Struct, frozen=True):
    """The contents of one module; edges are indices into `parts`."""

    path: str
    parts: tuple[Part, ...]
    edges: tuple[tuple[int, int], ...]


class _ModuleGraph(Struct):
    """The contents of a module while they are collected."""

    parts: dict[_Key, Part] = field(default_factory=dict[_Key, Part])
    edges: dict[tuple[_Key, _Key], None] = field(default_factory=dict[tuple[_Key, _Key], None])

    def done(self, path: str) -> ModuleContents:
        at = {key: place for place, key in enumerate(self.parts)}
        edges = tuple((at[one], at[other]) for one, other in self.edges)
        return ModuleContents(path, tuple(self.parts.values()), edges)


def module_contents(wiring: Wiring) -> dict[str, ModuleContents]:
    """Return the contents of every module by path, "" for the model; containers without own nodes are included."""
    drawn = _filled(_Graph(wiring))
    repeated = {(path, child) for path, graph in drawn.graphs.items() for child in _circling(graph)}
    if repeated:
        drawn = _filled(_Graph(wiring, repeated))
    return {path: graph.done(path) for path, graph in drawn.graphs.items()}


def _filled(drawn: _Graph) -> _Graph:
    wiring = drawn.wiring
    for node in range(len(wiring.names)):
        for graph, key, part in drawn.seen(node):
            graph.parts.setdefault(key, part)
    for producer, consumer in wiring.edges:
        drawn.connect(producer, consumer)
    for name, consumers in wiring.inputs.items():
        for consumer in consumers:
            drawn.feed(name, consumer)
    for name, producer in wiring.outputs.items():
        if producer >= 0:
            drawn.hand_out(name, producer)
    return drawn


def _circling(graph: _ModuleGraph) -> set[str]:
    """Return the modules on cycles, which arise because a module is called more than once."""
    left = set(graph.parts)
    for edges in (list(graph.edges), [(other, one) for one, other in graph.edges]):
        near: dict[_Key, list[_Key]] = {}
        waiting = Counter[_Key]()
        for one, other in edges:
            near.setdefault(one, []).append(other)
            waiting[other] += 1
        free = [key for key in graph.parts if not waiting[key]]
        for key in free:  # grows
            left.discard(key)
            for other in near.get(key, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    free.append(other)
    return {path for kind, path in left if kind == "module"}


class _Graph:
    """The wiring, with all modules that contain each node."""

    def __init__(self, wiring: Wiring, repeated: Set[tuple[str, str]] = frozenset()) -> None:
        """Prepare the graphs; pairs (module, module below it) in `repeated` are drawn once for each call."""
        self.wiring = wiring
        self.chains = [_chain(path) for path in wiring.modules]
        self.counts = Counter(path for owner in wiring.owners for path in self.chains[owner])
        self.graphs = {path: _ModuleGraph() for owner in wiring.owners for path in self.chains[owner]}
        self.joined = self._joined()
        self._boxes: dict[str, tuple[_Key, Part]] = {}
        self._calls = self._separate_calls(repeated) if repeated else {}

    def chain(self, node: int) -> tuple[str, ...]:
        """Return the paths of the modules that contain a node, the model first."""
        return self.chains[self.wiring.owners[node]]

    def seen(self, node: int) -> Iterator[tuple[_ModuleGraph, _Key, Part]]:
        """Yield how every module that contains the node shows it."""
        for depth, path in enumerate(self.chain(node)):
            yield self.graphs[path], *self.part(node, depth)

    def part(self, node: int, depth: int) -> tuple[_Key, Part]:
        """Return the node if the module at that depth owns it, otherwise the module below that contains it."""
        chain = self.chain(node)
        if depth == len(chain) - 1:
            name, op_type = self.wiring.names[node], self.wiring.ops[node]
            return ("op", str(node)), Part("op", op_type, name, chain[depth])
        call = self._calls.get((depth, node))
        if call is None:
            return self._module(chain[depth + 1], chain[depth])
        (kind, below), part = self._module(chain[depth + 1], chain[depth])
        text = f"{_below(below, chain[depth])} · {fmt.count(call[1])}"
        return (kind, f"{below}#{call[0]}"), replace(part, text=text)

    def _module(self, path: str, above: str) -> tuple[_Key, Part]:
        if path not in self._boxes:  # cached: every node below it needs it
            below = self.joined[path]
            text = f"{_below(below, above)} · {fmt.count(self.counts[below])}"
            self._boxes[path] = ("module", below), Part("module", text, path=below)
        return self._boxes[path]

    def connect(self, producer: int, consumer: int) -> None:
        """Add an edge in the lowest module with both ends, and ports in the modules below it."""
        producers, consumers = self.chain(producer), self.chain(consumer)
        common = sum(1 for one, other in zip(producers, consumers, strict=False) if one == other) - 1
        one, other = self.part(producer, common), self.part(consumer, common)
        if one[0] != other[0]:
            self.graphs[producers[common]].edges[one[0], other[0]] = None
        for depth in range(common + 1, len(consumers)):
            self._port(self.graphs[consumers[depth]], "from", one[1], self.part(consumer, depth)[0])
        for depth in range(common + 1, len(producers)):
            self._port(self.graphs[producers[depth]], "to", other[1], self.part(producer, depth)[0])

    def _port(self, graph: _ModuleGraph, way: str, neighbour: Part, inside: _Key) -> None:
        text = neighbour.text if neighbour.kind == "op" else neighbour.text.rpartition(" · ")[0]
        key = (way, f"{neighbour.path}:{text}")
        graph.parts.setdefault(key, Part("port", f"{way} {text}", path=neighbour.path))
        graph.edges[(key, inside) if way == "from" else (inside, key)] = None

    def feed(self, name: str, consumer: int) -> None:
        """Add an input of the model to every module that reads it."""
        for depth, path in enumerate(self.chain(consumer)):
            self.graphs[path].parts.setdefault(("input", name), Part("port", f"input {name}", name))
            self.graphs[path].edges[("input", name), self.part(consumer, depth)[0]] = None

    def hand_out(self, name: str, producer: int) -> None:
        """Add an output of the model to every module that produces it."""
        for depth, path in enumerate(self.chain(producer)):
            self.graphs[path].parts.setdefault(("output", name), Part("port", f"output {name}", name))
            self.graphs[path].edges[self.part(producer, depth)[0], ("output", name)] = None

    def _separate_calls(self, repeated: Set[tuple[str, str]]) -> dict[tuple[int, int], tuple[int, int]]:
        """Return, by depth and node, the first node of the call that contains the node, and the number of its nodes.

        Nodes of one call are connected within the module (union-find).
        """
        spots = [
            (depth, node)
            for node in range(len(self.wiring.names))
            for depth, (path, below) in enumerate(itertools.pairwise(self.chain(node)))
            if (path, self.joined[below]) in repeated
        ]
        first = {spot: spot for spot in spots}

        def root(spot: tuple[int, int]) -> tuple[int, int]:
            while first[spot] != spot:
                first[spot] = first[first[spot]]
                spot = first[spot]
            return spot

        for producer, consumer in self.wiring.edges:
            for depth, (one, other) in enumerate(zip(self.chain(producer)[1:], self.chain(consumer)[1:], strict=False)):
                if one == other and (depth, producer) in first:
                    left, right = sorted((root((depth, producer)), root((depth, consumer))))
                    first[right] = left
        sizes = Counter(root(spot) for spot in spots)
        return {spot: (root(spot)[1], sizes[root(spot)]) for spot in spots}

    def _joined(self) -> dict[str, str]:
        """Return for every path the deepest one with the same contents: a container of one module is that module."""
        used = {self.chains[owner] for owner in self.wiring.owners}
        own = {chain[-1] for chain in used}
        below: dict[str, set[str]] = {}
        for chain in used:
            for above, path in itertools.pairwise(chain):
                below.setdefault(above, set()).add(path)
        joined: dict[str, str] = {}
        for path in sorted(self.graphs, key=len, reverse=True):
            is_container = path not in own and len(below.get(path, ())) == 1
            joined[path] = joined[next(iter(below[path]))] if is_container else path
        return joined


def _chain(path: str) -> tuple[str, ...]:
    steps = path.split(".", DEEPEST)[:DEEPEST] if path else []
    return ("", *(".".join(steps[: at + 1]) for at in range(len(steps))))


def _below(path: str, above: str) -> str:
    return path[len(above) + 1 :] if above else path


# One module of a Run before and after, where new and removed nodes can be told.

Nodes = frozenset[tuple[str, str]]
Side = tuple[ModuleContents | None, Nodes]  # a module, and the nodes of the other graph


def nodes_of(wiring: Wiring) -> Nodes:
    """Return the identity of every node before and after: its name and its operator."""
    return frozenset(zip(wiring.names, wiring.ops, strict=True))


def module_sides(run: Run, path: str) -> tuple[Side, Side]:
    """Return a module before and after, None if it does not exist there, each with the nodes of the other graph."""
    if run.wiring_before is None or run.wiring_after is None:
        raise UsageError("the run has no graph", hint="optimize the model again, with this version")
    before, after = module_contents(run.wiring_before), module_contents(run.wiring_after)
    if path not in before and path not in after:
        hint = "sardonyx inspect lists the modules; the model itself is the empty path"
        raise UsageError(f"no module is called {fmt.name(path)!r}", hint=hint)
    return (before.get(path), nodes_of(run.wiring_after)), (after.get(path), nodes_of(run.wiring_before))


def top_module(run: Run) -> str:
    """Return the first module from the top that contains more than one other module."""
    if run.wiring_before is None:
        return ""
    contents = module_contents(run.wiring_before)
    path = ""
    while path in contents:
        parts = [part for part in contents[path].parts if part.kind != "port"]
        if len(parts) != 1 or parts[0].kind != "module" or parts[0].path is None:
            return path
        path = parts[0].path
    return ""


MAX_LABEL = 36  # characters of a label
MAX_ELEMENTS = 280  # boxes or edges: Mermaid refuses a text of 50,000 characters or of 500 edges
_HARMLESS = frozenset(" _-./:,()·…")
_SHAPES = {"module": ('[["', '"]]'), "port": ('(["', '"])')}
_SUFFIXES = {"made": " (new)", "gone": " (removed)"}
_STYLES = (
    "classDef made stroke:#0f766e,stroke-width:3px",
    "classDef gone stroke:#b45309,stroke-width:2px,stroke-dasharray:4 3",
    "classDef module stroke:#1d4ed8,stroke-width:2px",
)


def module_mermaid(run: Run, path: str, *, after: bool = True) -> str:
    """Return the contents of a module before or after; nodes that the other graph does not have are marked."""
    contents, others = module_sides(run, path)[after]
    if contents is None:
        return _sentence(f"{path or '(model)'}: this module does not exist here")
    new = "made" if after else "gone"
    kinds = [
        new if part.kind == "op" and (part.name, part.text) not in others else part.kind for part in contents.parts
    ]
    return _chart(contents, kinds)


def render_mermaid(dag: HierarchyDag) -> str:
    """Return the contents of the first top-level module, or "" if there is none."""
    by_path = module_contents(_wiring(dag))
    for tag in dag.tops():
        contents = by_path.get(dag.modules[tag].path)
        if contents is not None:
            return _chart(contents, [part.kind for part in contents.parts])
    return ""


def _wiring(dag: HierarchyDag) -> Wiring:
    """Return the operations by the modules they are shown in, with the inputs and outputs of the top-level modules."""
    at = {name: place for place, name in enumerate(dag.operations)}
    homes = dag.homes()
    modules = {tag: place for place, tag in enumerate(dag.modules)}
    tops = [dag.modules[tag] for tag in dag.tops()]
    inputs_of_tops = {value for top in tops for value in top.inputs}
    outputs_of_tops = {value for top in tops for value in top.outputs}
    inputs: dict[str, tuple[int, ...]] = {}
    for name, operation in dag.operations.items():
        for value in dict.fromkeys(operation.inputs):
            if value in inputs_of_tops:
                inputs[value] = (*inputs.get(value, ()), at[name])
    return Wiring(
        modules=tuple(module.path for module in dag.modules.values()),
        names=tuple(dag.operations),
        ops=tuple(operation.op_type for operation in dag.operations.values()),
        owners=tuple(modules[homes[name]] for name in dag.operations),
        edges=tuple((at[one], at[other]) for one, other in dag.edges()),
        inputs=inputs,
        outputs={value: at[producer] for value, (producer, _) in dag.producers().items() if value in outputs_of_tops},
    )


def _chart(contents: ModuleContents, kinds: Sequence[str]) -> str:
    if max(len(kinds), len(contents.edges)) > MAX_ELEMENTS:
        boxes = fmt.plural(len(kinds), "box", "boxes")
        return _sentence(f"{contents.path or '(model)'}: {boxes}, too many for one drawing")
    return "\n".join(("flowchart TD", *_lines(contents, kinds))) + "\n"


def _lines(contents: ModuleContents, kinds: Sequence[str]) -> Iterator[str]:
    for at, (part, kind) in enumerate(zip(contents.parts, kinds, strict=True)):
        start, end = _SHAPES.get(kind, ('["', '"]'))
        text = f"{quoted(fmt.name(part.text, MAX_LABEL))}{_SUFFIXES.get(kind, '')}"
        yield f"  n{at}{start}{text}{end}"
    for producer, consumer in contents.edges:
        yield f"  n{producer} --> n{consumer}"
    for style in _STYLES:
        styled = style.split()[1]
        members = [f"n{at}" for at, kind in enumerate(kinds) if kind == styled]
        if members:
            yield f"  {style}"
            yield f"  class {','.join(members)} {styled}"


def quoted(text: str) -> str:
    """Return any name, escaped for the quotes of a label."""
    return "".join(char if char in _HARMLESS or char.isalnum() else f"#{ord(char)};" for char in fmt.visible(text))


def _sentence(text: str) -> str:
    return f'flowchart TD\n  n0["{quoted(text)}"]\n'
