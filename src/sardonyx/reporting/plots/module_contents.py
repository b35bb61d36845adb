"""What is directly inside each module: its own nodes, the modules below it as one box each, and what flows in and out.

A model of ten thousand nodes reads as some hundreds of small graphs. Nothing here recurses, and a path that nests
deeper than anybody reads is cut.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from sardonyx.records.run import Wiring
from sardonyx.reporting import formatting

DEEPEST = 32  # steps of a path; what lies deeper is drawn there
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One box: a node of the module's own, a module below it, or a neighbour that it reads from or hands to."""

    kind: Literal["op", "module", "port"]
    text: str
    name: str = ""  # of the node, where it is one, or of an input or output of the model
    path: str | None = None  # of the module, or of the neighbour's


@dataclass(frozen=True, slots=True)
class Inside:
    """One module from inside; edges are places in `parts`."""

    path: str
    parts: tuple[Part, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Room:
    """A module while it fills."""

    parts: dict[_Key, Part] = field(default_factory=dict[_Key, Part])
    edges: dict[tuple[_Key, _Key], None] = field(default_factory=dict[tuple[_Key, _Key], None])

    def done(self, path: str) -> Inside:
        at = {key: place for place, key in enumerate(self.parts)}
        return Inside(path, tuple(self.parts.values()), tuple((at[one], at[other]) for one, other in self.edges))


def insides(wiring: Wiring) -> dict[str, Inside]:
    """Every module by path, "" for the model; containers that no node belongs to are among them."""
    graph = _filled(_Graph(wiring))
    again = {(path, child) for path, room in graph.rooms.items() for child in _circling(room)}
    if again:
        graph = _filled(_Graph(wiring, again))
    return {path: room.done(path) for path, room in graph.rooms.items()}


def _filled(graph: _Graph) -> _Graph:
    wiring = graph.wiring
    for node in range(len(wiring.names)):
        for room, key, part in graph.seen(node):
            room.parts.setdefault(key, part)
    for maker, reader in wiring.edges:
        graph.connect(maker, reader)
    for name, readers in wiring.inputs.items():
        for reader in readers:
            graph.feed(name, reader)
    for name, maker in wiring.outputs.items():
        if maker >= 0:
            graph.hand_out(name, maker)
    return graph


def _circling(room: _Room) -> set[str]:
    """Modules that the edges lead back to, because they are called more than once; those between them too."""
    left = set(room.parts)
    for edges in (list(room.edges), [(other, one) for one, other in room.edges]):
        near: dict[_Key, list[_Key]] = {}
        waiting = Counter[_Key]()
        for one, other in edges:
            near.setdefault(one, []).append(other)
            waiting[other] += 1
        free = [key for key in room.parts if not waiting[key]]
        for key in free:  # grows
            left.discard(key)
            for other in near.get(key, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    free.append(other)
    return {path for kind, path in left if kind == "module"}


class _Graph:
    """The wiring, with every module that a node is in."""

    def __init__(self, wiring: Wiring, again: Set[tuple[str, str]] = frozenset()) -> None:
        """With `again`, (module, module below it) that are drawn once for each of its calls."""
        self.wiring = wiring
        self.chains = [_chain(path) for path in wiring.modules]
        self.counts = Counter(path for owner in wiring.owners for path in self.chains[owner])
        self.rooms = {path: _Room() for owner in wiring.owners for path in self.chains[owner]}
        self.joined = self._joined()
        self._boxes: dict[str, tuple[_Key, Part]] = {}
        self._calls = self._told_apart(again) if again else {}

    def chain(self, node: int) -> tuple[str, ...]:
        """Paths of the modules a node is in, the model first."""
        return self.chains[self.wiring.owners[node]]

    def seen(self, node: int) -> Iterator[tuple[_Room, _Key, Part]]:
        """The node as every module that it is in sees it."""
        for depth, path in enumerate(self.chain(node)):
            yield self.rooms[path], *self.part(node, depth)

    def part(self, node: int, depth: int) -> tuple[_Key, Part]:
        """A node of the module at that depth, or the module below it that the node is in."""
        chain = self.chain(node)
        if depth == len(chain) - 1:
            name, op_type = self.wiring.names[node], self.wiring.ops[node]
            return ("op", str(node)), Part("op", op_type, name, chain[depth])
        call = self._calls.get((depth, node))
        if call is None:
            return self._module(chain[depth + 1], chain[depth])
        (kind, below), part = self._module(chain[depth + 1], chain[depth])
        text = f"{_below(below, chain[depth])} · {formatting.count(call[1])}"
        return (kind, f"{below}#{call[0]}"), replace(part, text=text)

    def _module(self, path: str, above: str) -> tuple[_Key, Part]:
        if path not in self._boxes:  # made once: every node below it asks
            below = self.joined[path]
            text = f"{_below(below, above)} · {formatting.count(self.counts[below])}"
            self._boxes[path] = ("module", below), Part("module", text, path=below)
        return self._boxes[path]

    def connect(self, maker: int, reader: int) -> None:
        """An edge inside the lowest module with both ends; out of and into the modules below it."""
        makers, readers = self.chain(maker), self.chain(reader)
        common = sum(1 for one, other in zip(makers, readers, strict=False) if one == other) - 1
        one, other = self.part(maker, common), self.part(reader, common)
        if one[0] != other[0]:
            self.rooms[makers[common]].edges[one[0], other[0]] = None
        for depth in range(common + 1, len(readers)):
            self._port(self.rooms[readers[depth]], "from", one[1], self.part(reader, depth)[0])
        for depth in range(common + 1, len(makers)):
            self._port(self.rooms[makers[depth]], "to", other[1], self.part(maker, depth)[0])

    def _port(self, room: _Room, way: str, neighbour: Part, inside: _Key) -> None:
        text = neighbour.text if neighbour.kind == "op" else neighbour.text.rpartition(" · ")[0]
        key = (way, f"{neighbour.path}:{text}")
        room.parts.setdefault(key, Part("port", f"{way} {text}", path=neighbour.path))
        room.edges[(key, inside) if way == "from" else (inside, key)] = None

    def feed(self, name: str, reader: int) -> None:
        """An input of the model, in every module that reads it."""
        for depth, path in enumerate(self.chain(reader)):
            self.rooms[path].parts.setdefault(("input", name), Part("port", f"input {name}", name))
            self.rooms[path].edges[("input", name), self.part(reader, depth)[0]] = None

    def hand_out(self, name: str, maker: int) -> None:
        """An output of the model, in every module that makes it."""
        for depth, path in enumerate(self.chain(maker)):
            self.rooms[path].parts.setdefault(("output", name), Part("port", f"output {name}", name))
            self.rooms[path].edges[self.part(maker, depth)[0], ("output", name)] = None

    def _told_apart(self, again: Set[tuple[str, str]]) -> dict[tuple[int, int], tuple[int, int]]:
        """By depth and node: which call of a module the node is in, told by its first node, and how many are in it.

        Nodes of one call are connected within the module.
        """
        spots = [
            (depth, node)
            for node in range(len(self.wiring.names))
            for depth, (path, below) in enumerate(itertools.pairwise(self.chain(node)))
            if (path, self.joined[below]) in again
        ]
        first = {spot: spot for spot in spots}

        def found(spot: tuple[int, int]) -> tuple[int, int]:
            while first[spot] != spot:
                first[spot] = first[first[spot]]
                spot = first[spot]
            return spot

        for maker, reader in self.wiring.edges:
            for depth, (one, other) in enumerate(zip(self.chain(maker)[1:], self.chain(reader)[1:], strict=False)):
                if one == other and (depth, maker) in first:
                    left, right = sorted((found((depth, maker)), found((depth, reader))))
                    first[right] = left
        sizes = Counter(found(spot) for spot in spots)
        return {spot: (found(spot)[1], sizes[found(spot)]) for spot in spots}

    def _joined(self) -> dict[str, str]:
        """Every path by the deepest one that holds the same and no more: a container of one thing is that thing."""
        used = {self.chains[owner] for owner in self.wiring.owners}
        own = {chain[-1] for chain in used}
        below: dict[str, set[str]] = {}
        for chain in used:
            for above, path in itertools.pairwise(chain):
                below.setdefault(above, set()).add(path)
        found: dict[str, str] = {}
        for path in sorted(self.rooms, key=len, reverse=True):
            alone = path not in own and len(below.get(path, ())) == 1
            found[path] = found[next(iter(below[path]))] if alone else path
        return found


def _chain(path: str) -> tuple[str, ...]:
    steps = path.split(".", DEEPEST)[:DEEPEST] if path else []
    return ("", *(".".join(steps[: at + 1]) for at in range(len(steps))))


def _below(path: str, above: str) -> str:
    return path[len(above) + 1 :] if above else path
