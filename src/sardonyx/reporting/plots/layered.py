"""Where the boxes of a graph stand and how its edges run: makers above readers, few crossings, straight edges.

Our own because a page draws one module at a time: some dozens of boxes, laid out when the page is written, the same
every time. Boxes are put into layers (`layers.py`), then each layer is fitted to its neighbours without changing its
order. Edges leave a box at the bottom and enter at the top; between layers there is nothing they could run through.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Boxes and edges in layers: which layer every box is in, where long edges pass, and in which order a layer stands.
#
# The first half of the layered layout in `layered.py`. Nothing recurses, and nothing takes long on purpose: graphs come
# from files, may be cyclic, and may have thousands of boxes in a row.

Edge = tuple[int, int]
SWEEPS = 12  # over a small graph; a large one gets fewer
ENOUGH = 30_000  # places visited by all sweeps together
BENDS = 3000  # places where long edges pass, besides four for every box; more, and the longest go around


@dataclass(frozen=True, slots=True)
class Net:
    """Boxes, and behind them the places where long edges pass; every edge in it goes to the next layer."""

    boxes: int
    ranks: list[int]
    up: list[list[int]]
    down: list[list[int]]
    layers: list[list[int]] = field(default_factory=list[list[int]])  # in order from left to right
    bends: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])  # of (maker, layer)
    passing: dict[int, int] = field(default_factory=dict[int, int])  # whose edges those are
    around: set[Edge] = field(default_factory=set[Edge])  # edges that no layer knows


def layered(boxes: int, edges: Iterable[Edge]) -> Net:
    """The boxes in layers and the layers in an order with few crossings."""
    known = sorted(set(edges))
    back = _back_edges(boxes, known)
    forward = [edge for edge in known if edge not in back]
    ranks = _ranks(boxes, forward)
    short = _short_enough(boxes, forward, ranks)
    net = Net(boxes, ranks, [[] for _ in ranks], [[] for _ in ranks], around=set(known) - set(short))
    above = -1
    for maker, reader in sorted(short, key=lambda edge: (edge[0], net.ranks[edge[1]], edge[1])):
        above = above if above >= 0 and net.passing.get(above, above) == maker else maker
        for rank in range(net.ranks[above] + 1, net.ranks[reader]):
            above = _bend(net, maker, above, rank)
        net.down[above].append(reader)
        net.up[reader].append(above)
    net.layers.extend(_first_order(net))
    _untangle(net)
    return net


def _bend(net: Net, maker: int, above: int, rank: int) -> int:
    """Where edges of a maker pass a layer; they pass together as far as they go the same way."""
    place = len(net.ranks)
    net.bends[maker, rank] = place
    net.passing[place] = maker
    net.ranks.append(rank)
    net.up.append([above])
    net.down.append([])
    net.down[above].append(place)
    return place


def _readers(boxes: int, edges: Iterable[Edge]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(boxes)]
    for maker, reader in edges:
        found[maker].append(reader)
    return found


def _back_edges(boxes: int, edges: Sequence[Edge]) -> set[Edge]:
    """Edges that close a cycle, in a walk that begins at what nobody feeds."""
    readers = _readers(boxes, edges)
    fed = {reader for _, reader in edges}
    state = [0] * boxes  # 1: on the way, 2: done
    back: set[Edge] = set()
    for start in sorted(range(boxes), key=lambda box: (box in fed, box)):
        stack = [] if state[start] else [(start, iter(readers[start]))]
        state[start] = state[start] or 1
        while stack:
            box, rest = stack[-1]
            reader = next(rest, None)
            if reader is None:
                state[box] = 2
                stack.pop()
            elif state[reader] == 1:
                back.add((box, reader))
            elif state[reader] == 0:
                state[reader] = 1
                stack.append((reader, iter(readers[reader])))
    return back


def _ranks(boxes: int, edges: Sequence[Edge]) -> list[int]:
    """As high as what feeds a box allows; then what has as many readers as makers moves down to them."""
    readers, makers = _readers(boxes, edges), _readers(boxes, [(b, a) for a, b in edges])
    waiting = [len(each) for each in makers]
    queue = deque(box for box in range(boxes) if not waiting[box])
    order: list[int] = []
    ranks = [0] * boxes
    while queue:
        box = queue.popleft()
        order.append(box)
        for reader in readers[box]:
            ranks[reader] = max(ranks[reader], ranks[box] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                queue.append(reader)
    for box in reversed(order):
        if len(readers[box]) >= max(len(makers[box]), 1):
            ranks[box] = min(ranks[reader] for reader in readers[box]) - 1
    used = {rank: place for place, rank in enumerate(sorted(set(ranks)))}
    return [used[rank] for rank in ranks]


def _short_enough(boxes: int, edges: Sequence[Edge], ranks: Sequence[int]) -> list[Edge]:
    """The edges that go through the layers: all, unless that would need too many places to pass."""
    longest = max((ranks[b] - ranks[a] for a, b in edges), default=0)
    while True:
        kept = [(a, b) for a, b in edges if ranks[b] - ranks[a] <= longest]
        spans: dict[int, int] = {}
        for a, b in kept:
            spans[a] = max(spans.get(a, 0), ranks[b] - ranks[a] - 1)
        if longest <= 1 or sum(spans.values()) <= BENDS + 4 * boxes:
            return kept
        longest //= 2


def _first_order(net: Net) -> list[list[int]]:
    """Every layer in the order in which a walk along the edges comes by."""
    layers: list[list[int]] = [[] for _ in range(1 + max(net.ranks, default=-1))]
    seen = [False] * len(net.ranks)
    for start in sorted(range(len(net.ranks)), key=lambda place: (bool(net.up[place]), place)):
        stack = [start]
        while stack:
            place = stack.pop()
            if not seen[place]:
                seen[place] = True
                layers[net.ranks[place]].append(place)
                stack += reversed(net.down[place])
    return layers


def _untangle(net: Net) -> None:
    """Sweeps down and up: everything goes to the middle of its neighbours; the best order seen stays."""
    best, fewest = [list(layer) for layer in net.layers], _crossings(net)
    for sweep in range(min(SWEEPS, 2 + ENOUGH // len(net.ranks) if net.ranks else 0)):
        if not fewest:
            break
        downward = sweep % 2 == 0
        ranks = range(1, len(net.layers)) if downward else range(len(net.layers) - 2, -1, -1)
        for rank in ranks:
            _sort(net, rank, rank - 1 if downward else rank + 1, net.up if downward else net.down)
        crossings = _crossings(net)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in net.layers], crossings
    net.layers[:] = best


def _sort(net: Net, rank: int, beside: int, neighbours: Sequence[Sequence[int]]) -> None:
    """One layer by the middle of its neighbours in the one beside it; what has none keeps its part of the layer."""
    there = {place: at for at, place in enumerate(net.layers[beside])}
    scale = len(there) / len(net.layers[rank])
    middles: dict[int, float] = {}
    for at, place in enumerate(net.layers[rank]):
        near = neighbours[place]
        middles[place] = sum(there[each] for each in near) / len(near) if near else at * scale
    net.layers[rank].sort(key=middles.__getitem__)


def _crossings(net: Net) -> int:
    """How many pairs of edges cross."""
    found = 0
    for upper, lower in zip(net.layers, net.layers[1:], strict=False):
        there = {place: at for at, place in enumerate(lower)}
        passed: list[int] = []
        for place in upper:
            ends = sorted(there[each] for each in net.down[place])
            found += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return found


Point = tuple[float, float]
BESIDE, PASSING = 22.0, 12.0  # between two boxes; beside an edge that passes
BETWEEN = 34.0  # two layers
LANE = 8.0  # between edges that go around
LANES = 40
FITTINGS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The top left corner of every box, and every edge as the points it runs through."""

    width: float
    height: float
    places: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


def layout(boxes: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """A place for every (width, height) and a route for every edge; edges that close a cycle go around."""
    net = layered(len(boxes), edges)
    widths = [box[0] for box in boxes] + [0.0] * (len(net.ranks) - len(boxes))
    middles = _middles(net, widths)
    tops, bottoms = _rows(net, boxes)
    shift = -min((x - width / 2 for x, width in zip(middles, widths, strict=True)), default=0.0)
    middles = [x + shift for x in middles]
    width = max((x + width / 2 for x, width in zip(middles, widths, strict=True)), default=0.0)
    ys = [(tops[net.ranks[box]] + bottoms[net.ranks[box]] - boxes[box][1]) / 2 for box in range(len(boxes))]
    drawn = _Drawn(net, boxes, middles, ys, tops, bottoms, width)
    routes = drawn.routes(edges)
    return Layout(
        width=max([width, *(x for route in routes for x, _ in route)]),
        height=max([*bottoms, *(y for route in routes for _, y in route)], default=0.0),
        places=tuple((x - box[0] / 2, y) for x, y, box in zip(middles, ys, boxes, strict=False)),
        routes=routes,
    )


def _rows(net: Net, boxes: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The upper and the lower end of each layer; there is room above and below where an edge goes around."""
    tops, bottoms = list[float](), list[float]()
    y = BETWEEN if net.around else 0.0
    for layer in net.layers:
        tops.append(y)
        bottoms.append(y + max((boxes[place][1] for place in layer if place < net.boxes), default=0.0))
        y = bottoms[-1] + BETWEEN
    return tops, bottoms


def _middles(net: Net, widths: Sequence[float]) -> list[float]:
    """Where everything stands from left to right: again and again as near to its neighbours as its layer allows."""
    xs = [0.0] * len(widths)
    for layer in net.layers:
        for place, x in zip(layer, itertools.accumulate(_apart(net, widths, layer), initial=0.0), strict=True):
            xs[place] = x
    for fitting in range(FITTINGS):
        downward = fitting % 2 == 0
        for layer in net.layers if downward else reversed(net.layers):
            near = net.up if downward else net.down
            wanted = [_wanted(net, place, near[place], xs) for place in layer]
            for place, x in zip(layer, _fitted(wanted, _apart(net, widths, layer)), strict=True):
                xs[place] = x
    return xs


def _apart(net: Net, widths: Sequence[float], layer: Sequence[int]) -> list[float]:
    """How far the middles of neighbours in a layer must be from each other."""
    return [
        (widths[a] + widths[b]) / 2 + (BESIDE if a < net.boxes and b < net.boxes else PASSING)
        for a, b in itertools.pairwise(layer)
    ]


def _wanted(net: Net, place: int, near: Sequence[int], xs: Sequence[float]) -> tuple[float, float]:
    """The middle of the neighbours of its sort, and how much that matters: most where a long edge should be straight.

    Boxes go by boxes where there are any, else a skip past a row of boxes would pull the row aside.
    """
    if not near:
        return xs[place], 0.1
    passing = place >= net.boxes
    alike = [each for each in near if (each >= net.boxes) == passing]
    found = sorted(xs[each] for each in alike or near)
    half = len(found) // 2
    middle = found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2
    return middle, (8.0 if alike else 0.01) if passing else 1.0


def _fitted(wanted: Sequence[tuple[float, float]], apart: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones (least squares) that keep their order and their distances."""
    offsets = [*itertools.accumulate(apart, initial=0.0)]
    groups: list[tuple[float, float, int]] = []  # mean, weight, how many
    for (x, weight), offset in zip(wanted, offsets, strict=False):
        mean, count = x - offset, 1
        while groups and groups[-1][0] > mean:
            other, more, several = groups.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, count = weight + more, count + several
        groups.append((mean, weight, count))
    means = (mean for mean, _, count in groups for _ in range(count))
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Everything at its place, ready for edges."""

    net: Net
    boxes: Sequence[tuple[float, float]]
    middles: Sequence[float]
    ys: Sequence[float]
    tops: Sequence[float]
    bottoms: Sequence[float]
    width: float

    def routes(self, edges: Sequence[Edge]) -> tuple[tuple[Point, ...], ...]:
        """A route for every edge, in the order of the edges."""
        entries = self._entries()
        lanes = {maker: at % LANES for at, maker in enumerate(sorted({a for a, _ in self.net.around}))}
        through: dict[int, list[int]] = {}
        found: dict[Edge, tuple[Point, ...]] = {}
        for maker, reader in sorted(set(edges)):
            if (maker, reader) in self.net.around:
                way = self._around((maker, reader), lanes[maker])
                found[maker, reader] = self._entered(way, reader, entries[maker, reader])
            else:
                through.setdefault(maker, []).append(reader)
        for maker, readers in through.items():
            way, rank = self._left(maker), self.net.ranks[maker] + 1
            for reader in sorted(readers, key=self.net.ranks.__getitem__):  # from the top down: they share their way
                for passed in range(rank, self.net.ranks[reader]):
                    x = self.middles[self.net.bends[maker, passed]]
                    _go_on(way, (x, self.tops[passed]))
                    _go_on(way, (x, self.bottoms[passed]))
                rank = max(rank, self.net.ranks[reader])
                found[maker, reader] = self._entered(way, reader, entries[maker, reader])
        return tuple(found[edge] for edge in edges)

    def _entries(self) -> dict[Edge, float]:
        """Where each edge enters its reader: side by side, in the order they come from."""
        incoming: dict[int, list[tuple[float, Edge]]] = {}
        for reader in range(self.net.boxes):
            for above in self.net.up[reader]:
                edge = (self.net.passing.get(above, above), reader)
                incoming.setdefault(reader, []).append((self.middles[above], edge))
        for edge in sorted(self.net.around):
            incoming.setdefault(edge[1], []).append((self.width, edge))
        found: dict[Edge, float] = {}
        for reader, coming in incoming.items():
            coming.sort()
            step = min(self.boxes[reader][0] * 0.7 / len(coming), 18.0)
            for at, (_, edge) in enumerate(coming):
                found[edge] = self.middles[reader] + (at - (len(coming) - 1) / 2) * step
        return found

    def _left(self, maker: int) -> list[Point]:
        """Where edges leave their maker, and its layer."""
        x = self.middles[maker]
        return without_idle([(x, self.ys[maker] + self.boxes[maker][1]), (x, self.bottoms[self.net.ranks[maker]])])

    def _entered(self, way: Sequence[Point], reader: int, x: float) -> tuple[Point, ...]:
        """A way, and from its end into the reader."""
        kept = list(way)
        _go_on(kept, (x, self.tops[self.net.ranks[reader]]))
        _go_on(kept, (x, self.ys[reader]))
        return tuple(kept)

    def _around(self, edge: Edge, lane: int) -> list[Point]:
        """Out to the right, along everything, and back."""
        maker, reader = edge
        x = self.width + LANE * (1 + lane)
        below, above = self.bottoms[self.net.ranks[maker]], self.tops[self.net.ranks[reader]]
        return [*self._left(maker), (x, below + BETWEEN / 2), (x, above - BETWEEN / 2)]


def without_idle(points: Iterable[Point]) -> list[Point]:
    """The points without those that lie between two others on a vertical line."""
    kept: list[Point] = []
    for point in points:
        _go_on(kept, point)
    return kept


def _go_on(kept: list[Point], point: Point) -> None:
    while len(kept) > 1 and kept[-1][0] == kept[-2][0] == point[0]:
        kept.pop()
    if not kept or kept[-1] != point:
        kept.append(point)
