"""What a module contains, as nodes and edges and as a Mermaid diagram."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence, Set
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


def module_contents(wiring: Wiring) -> dict[str, ModuleContents]:
    """Return the contents of every module by path, "" for the model; containers without own nodes are included."""
    drawn = _Graph(wiring)
    repeated = {(path, child) for path, graph in drawn.graphs.items() for child in _circling(graph)}
    if repeated:
        drawn = _Graph(wiring, repeated)
    contents: dict[str, ModuleContents] = {}
    for path, graph in drawn.graphs.items():
        at = {key: place for place, key in enumerate(graph.parts)}
        edges = tuple((at[one], at[other]) for one, other in graph.edges)
        contents[path] = ModuleContents(path, tuple(graph.parts.values()), edges)
    return contents


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
    """The wiring as every module that contains a part of it shows it."""

    def __init__(self, wiring: Wiring, repeated: Set[tuple[str, str]] = frozenset()) -> None:
        """Draw the graphs; pairs (module, module below it) in `repeated` are drawn once for each call."""
        self.wiring = wiring
        chains = [_chain(path) for path in wiring.modules]
        self.chains = [chains[owner] for owner in wiring.owners]  # by node: modules that contain it, the model first
        self.counts = Counter(path for chain in self.chains for path in chain)
        self.graphs = {path: _ModuleGraph() for chain in self.chains for path in chain}
        self.joined = self._joined()
        self._boxes: dict[str, tuple[_Key, Part]] = {}
        self._calls = self._separate_calls(repeated) if repeated else {}
        for node, chain in enumerate(self.chains):
            for depth, path in enumerate(chain):
                self.graphs[path].parts.setdefault(*self.part(node, depth))
        for producer, consumer in wiring.edges:
            self._connect(producer, consumer)
        for name, consumers in wiring.inputs.items():
            for consumer in consumers:
                self._bound("input", name, consumer)
        for name, producer in wiring.outputs.items():
            if producer >= 0:
                self._bound("output", name, producer)

    def part(self, node: int, depth: int) -> tuple[_Key, Part]:
        """Return the node if the module at that depth owns it, otherwise the module below that contains it."""
        chain = self.chains[node]
        if depth == len(chain) - 1:
            return ("op", str(node)), Part("op", self.wiring.ops[node], self.wiring.names[node], chain[depth])
        path, above = chain[depth + 1], chain[depth]
        if path not in self._boxes:  # cached: every node below it needs it
            below = self.joined[path]
            text = f"{_below(below, above)} · {fmt.count(self.counts[below])}"
            self._boxes[path] = ("module", below), Part("module", text, path=below)
        (kind, below), part = self._boxes[path]
        call = self._calls.get((depth, node))
        if call is None:
            return (kind, below), part
        text = f"{_below(below, above)} · {fmt.count(call[1])}"
        return (kind, f"{below}#{call[0]}"), replace(part, text=text)

    def _connect(self, producer: int, consumer: int) -> None:
        """Add an edge in the lowest module with both ends, and ports in the modules below it."""
        producers, consumers = self.chains[producer], self.chains[consumer]
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

    def _bound(self, kind: Literal["input", "output"], name: str, node: int) -> None:
        """Add an input of the model to every module that reads it, or an output to every one that produces it."""
        for depth, path in enumerate(self.chains[node]):
            graph, key, inside = self.graphs[path], (kind, name), self.part(node, depth)[0]
            graph.parts.setdefault(key, Part("port", f"{kind} {name}", name))
            graph.edges[(key, inside) if kind == "input" else (inside, key)] = None

    def _separate_calls(self, repeated: Set[tuple[str, str]]) -> dict[tuple[int, int], tuple[int, int]]:
        """Return, by depth and node, the first node of the call that contains the node, and the number of its nodes.

        Nodes of one call are connected within the module (union-find).
        """
        spots = [
            (depth, node)
            for node in range(len(self.wiring.names))
            for depth, (path, below) in enumerate(itertools.pairwise(self.chains[node]))
            if (path, self.joined[below]) in repeated
        ]
        first = {spot: spot for spot in spots}

        def root(spot: tuple[int, int]) -> tuple[int, int]:
            while first[spot] != spot:
                first[spot] = first[first[spot]]
                spot = first[spot]
            return spot

        for producer, consumer in self.wiring.edges:
            for depth, (one, other) in enumerate(
                zip(self.chains[producer][1:], self.chains[consumer][1:], strict=False)
            ):
                if one == other and (depth, producer) in first:
                    left, right = sorted((root((depth, producer)), root((depth, consumer))))
                    first[right] = left
        sizes = Counter(root(spot) for spot in spots)
        return {spot: (root(spot)[1], sizes[root(spot)]) for spot in spots}

    def _joined(self) -> dict[str, str]:
        """Return for every path the deepest one with the same contents: a container of one module is that module."""
        used = set(self.chains)
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


def nodes_of(wiring: Wiring) -> Nodes:
    """Return the identity of every node before and after: its name and its operator."""
    return frozenset(zip(wiring.names, wiring.ops, strict=True))


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
    if run.wiring_before is None or run.wiring_after is None:
        raise UsageError("the run has no graph", hint="optimize the model again, with this version")
    graphs = (run.wiring_before, run.wiring_after)
    sides = [module_contents(wiring) for wiring in graphs]
    if not any(path in side for side in sides):
        hint = "sardonyx inspect lists the modules; the model itself is the empty path"
        raise UsageError(f"no module is called {fmt.name(path)!r}", hint=hint)
    if (contents := sides[after].get(path)) is None:
        return _sentence(f"{path or '(model)'}: this module does not exist here")
    new, others = "made" if after else "gone", nodes_of(graphs[not after])
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
    lines = ["flowchart TD"]
    for at, (part, kind) in enumerate(zip(contents.parts, kinds, strict=True)):
        start, end = _SHAPES.get(kind, ('["', '"]'))
        lines.append(f"  n{at}{start}{quoted(fmt.name(part.text, MAX_LABEL))}{_SUFFIXES.get(kind, '')}{end}")
    lines += [f"  n{producer} --> n{consumer}" for producer, consumer in contents.edges]
    for style in _STYLES:
        styled = style.split()[1]
        if members := [f"n{at}" for at, kind in enumerate(kinds) if kind == styled]:
            lines += [f"  {style}", f"  class {','.join(members)} {styled}"]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return any name, escaped for the quotes of a label."""
    return "".join(char if char in _HARMLESS or char.isalnum() else f"#{ord(char)};" for char in fmt.visible(text))


def _sentence(text: str) -> str:
    return f'flowchart TD\n  n0["{quoted(text)}"]\n'
