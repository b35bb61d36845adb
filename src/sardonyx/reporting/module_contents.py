"""What a module contains, as nodes and edges and as a Mermaid diagram."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.inspection import HierarchyDag
from sardonyx.records.provenance import lineage
from sardonyx.records.run import Wiring
from sardonyx.reporting import formatting as fmt

MAX_DEPTH = 32  # steps of a path; deeper nodes are drawn at this level
_Key = tuple[str, str]


class Box(Struct, frozen=True):
    """One box: a node of the module itself, a module below it, or a neighbour that it reads from or writes to."""

    kind: Literal["op", "module", "port"]
    text: str
    name: str = ""  # of a node, or of an input or output of the model
    path: str | None = None  # of the module, or of the neighbour's


class ModuleContents(Struct, frozen=True):
    """The contents of one module; edges are indices into `parts`."""

    path: str
    parts: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


class _Owners:
    """Which modules contain each node. A container of one module is shown as that module."""

    def __init__(self, wiring: Wiring) -> None:
        chains = [tuple(lineage(".".join(path.split(".", MAX_DEPTH)[:MAX_DEPTH]))) for path in wiring.modules]
        self.chains = [chains[owner] for owner in wiring.owners]  # by node: modules that contain it, the model first
        self._owning = {chain[-1] for chain in self.chains}
        self._below: dict[str, set[str]] = {}
        for chain in {*self.chains}:
            for above, path in itertools.pairwise(chain):
                self._below.setdefault(above, set()).add(path)

    def innermost(self, path: str) -> str:
        """Return the deepest module with the same contents."""
        while path not in self._owning and len(below := self._below.get(path, ())) == 1:
            (path,) = below
        return path

    def part(self, wiring: Wiring, node: int, depth: int) -> Box:
        """Return the node if the module at that depth owns it, otherwise the module below that contains it."""
        chain = self.chains[node]
        if depth == len(chain) - 1:
            return Box("op", wiring.ops[node], wiring.names[node], chain[depth])
        path = self.innermost(chain[depth + 1])
        return Box("module", path[len(chain[depth]) + 1 :] if depth else path, path=path)


def module_contents(wiring: Wiring, path: str) -> ModuleContents | None:
    """Return the contents of a module, "" for the model, or None if it has no node; it may be a mere container."""
    owners, depth = _Owners(wiring), path.count(".") + 1 if path else 0
    inside = [node for node, chain in enumerate(owners.chains) if chain[depth : depth + 1] == (path,)]
    if not inside:
        return None
    drawn = {node: owners.part(wiring, node, depth) for node in inside}
    keys = {
        node: ("op", str(node)) if part.kind == "op" else ("module", part.path or "") for node, part in drawn.items()
    }
    between = [(producer, consumer) for producer, consumer in wiring.edges if producer in keys and consumer in keys]
    if repeated := _circling([(keys[one], keys[other]) for one, other in between if keys[one] != keys[other]]):
        calls = _calls([node for node in inside if keys[node] in repeated], between, keys)
        keys |= {node: ("module", f"{drawn[node].path}#{first}") for node, first in calls.items()}
    counts, parts = Counter(keys.values()), dict[_Key, Box]()
    for node, part in drawn.items():
        counted = part if part.kind == "op" else replace(part, text=f"{part.text} · {fmt.count(counts[keys[node]])}")
        parts.setdefault(keys[node], counted)
    edges: dict[tuple[_Key, _Key], None] = {}

    def join(node: int, key: _Key, port: Box, *, reads: bool) -> None:
        """Connect a node of the module with a neighbour, or with an input or output of the model."""
        parts.setdefault(key, port)
        edges[(key, keys[node]) if reads else (keys[node], key)] = None

    for producer, consumer in wiring.edges:
        if producer in keys and consumer in keys:
            if keys[producer] != keys[consumer]:
                edges[keys[producer], keys[consumer]] = None
        elif producer in keys or consumer in keys:
            node, other, way = (consumer, producer, "from") if consumer in keys else (producer, consumer, "to")
            common = sum(a == b for a, b in zip(owners.chains[node], owners.chains[other], strict=False)) - 1
            outer = owners.part(wiring, other, common)
            port = Box("port", f"{way} {outer.text}", path=outer.path)
            join(node, (way, f"{outer.path}:{outer.text}"), port, reads=way == "from")
    ends = [("input", name, node) for name, nodes in wiring.inputs.items() for node in nodes]
    ends += [("output", name, node) for name, node in wiring.outputs.items()]
    for kind, name, node in ends:
        if node in keys:
            join(node, (kind, name), Box("port", f"{kind} {name}", name), reads=kind == "input")
    at = {key: place for place, key in enumerate(parts)}
    return ModuleContents(path, tuple(parts.values()), tuple((at[one], at[other]) for one, other in edges))


def _circling(edges: Sequence[tuple[_Key, _Key]]) -> set[_Key]:
    """Return the modules on cycles, which arise because a module is called more than once."""
    keys = dict.fromkeys(key for edge in edges for key in edge)
    left = {key for key in keys if key[0] == "module"}
    for ordered in (dict.fromkeys(edges), dict.fromkeys((other, one) for one, other in edges)):
        near, waiting = defaultdict[_Key, list[_Key]](list), Counter[_Key]()
        for one, other in ordered:
            near[one].append(other)
            waiting[other] += 1
        free = [key for key in keys if not waiting[key]]
        for key in free:  # grows
            left.discard(key)
            for other in near[key]:
                waiting[other] -= 1
                if not waiting[other]:
                    free.append(other)
    return left


def _calls(nodes: Sequence[int], edges: Sequence[tuple[int, int]], keys: Mapping[int, _Key]) -> dict[int, int]:
    """Return the first node of the call that each node is part of: the nodes of a call are connected (union-find)."""
    first = {node: node for node in nodes}

    def root(node: int) -> int:
        while first[node] != node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for producer, consumer in edges:
        if producer in first and keys[producer] == keys[consumer]:
            left, right = sorted((root(producer), root(consumer)))
            first[right] = left
    return {node: root(node) for node in nodes}


# One module of a Run before and after, where new and removed nodes can be told.

Nodes = frozenset[tuple[str, str]]


def nodes_of(wiring: Wiring) -> Nodes:
    """Return the identity of every node before and after: its name and its operator."""
    return frozenset(zip(wiring.names, wiring.ops, strict=True))


def top_module(wiring: Wiring) -> str:
    """Return the first module from the top that contains more than one other module."""
    return _Owners(wiring).innermost("")


MAX_LABEL = 36  # characters of a label
MAX_ELEMENTS = 280  # boxes or edges: Mermaid refuses a text of 50,000 characters or of 500 edges
_HARMLESS = frozenset(" _-./:,()·…")
_SHAPES = {"module": ('[["', '"]]'), "port": ('(["', '"])')}
_STYLES = (
    "classDef made stroke:#0f766e,stroke-width:3px",
    "classDef module stroke:#1d4ed8,stroke-width:2px",
)


def module_mermaid(before: Wiring, after: Wiring, path: str) -> str:
    """Return the contents of a module after an optimization; nodes that the graph before does not have are marked."""
    if (contents := module_contents(after, path)) is None:
        return _sentence(f"{path or '(model)'}: this module does not exist here")
    others = nodes_of(before)
    kinds = [
        "made" if part.kind == "op" and (part.name, part.text) not in others else part.kind for part in contents.parts
    ]
    return _chart(contents, kinds)


def render_mermaid(dag: HierarchyDag) -> str:
    """Return the contents of the first top-level module, or "" if there is none."""
    wiring = _wiring(dag)
    for tag in dag.tops():
        if (contents := module_contents(wiring, dag.modules[tag].path)) is not None:
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
        lines.append(f"  n{at}{start}{quoted(fmt.name(part.text, MAX_LABEL))}{' (new)' if kind == 'made' else ''}{end}")
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
