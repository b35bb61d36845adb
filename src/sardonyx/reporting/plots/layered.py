"""Layered layout of a graph: producers above consumers, few crossings, straight edges.

Written for pages that draw one module at a time: some dozens of boxes, laid out when the page is written, with the same
result every time. Boxes are assigned to layers, then each layer is fitted to its neighbours without changing its order.
Edges leave a box at the bottom and enter at the top; between layers there are no boxes.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

# First half: the layer of every box, where long edges pass, and the order within each layer.
#
# Nothing recurses, and the effort is bounded: graphs come from files, may be cyclic, and may have thousands of boxes.

Edge = tuple[int, int]
SWEEPS = 12  # over a small graph; fewer over a large one
ENOUGH = 30_000  # places visited by all sweeps together
BENDS = 3000  # places where long edges pass, plus four for every box; beyond that, the longest edges go around


class Net(Struct, frozen=True):
    """Boxes, followed by the places where long edges pass; every edge goes to the next layer."""

    boxes: int
    ranks: list[int]
    up: list[list[int]]
    down: list[list[int]]
    layers: list[list[int]] = field(default_factory=list[list[int]])  # in order from left to right
    bends: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])  # of (producer, layer)
    passing: dict[int, int] = field(default_factory=dict[int, int])  # whose edges those are
    around: set[Edge] = field(default_factory=set[Edge])  # edges outside the layers


def layered(boxes: int, edges: Iterable[Edge]) -> Net:
    """Return the boxes in layers, each in an order with few crossings."""
    distinct = sorted(set(edges))
    back = _back_edges(boxes, distinct)
    forward = [edge for edge in distinct if edge not in back]
    ranks = _ranks(boxes, forward)
    short = _short_enough(boxes, forward, ranks)
    net = Net(boxes, ranks, [[] for _ in ranks], [[] for _ in ranks], around=set(distinct) - set(short))
    above = -1
    for producer, consumer in sorted(short, key=lambda edge: (edge[0], net.ranks[edge[1]], edge[1])):
        above = above if above >= 0 and net.passing.get(above, above) == producer else producer
        for rank in range(net.ranks[above] + 1, net.ranks[consumer]):
            above = _bend(net, producer, above, rank)
        net.down[above].append(consumer)
        net.up[consumer].append(above)
    net.layers.extend(_first_order(net))
    _untangle(net)
    return net


def _bend(net: Net, producer: int, above: int, rank: int) -> int:
    """Add the place where the edges of a producer pass a layer, and return it."""
    place = len(net.ranks)
    net.bends[producer, rank] = place
    net.passing[place] = producer
    net.ranks.append(rank)
    net.up.append([above])
    net.down.append([])
    net.down[above].append(place)
    return place


def _consumers(boxes: int, edges: Iterable[Edge]) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in range(boxes)]
    for producer, consumer in edges:
        consumers[producer].append(consumer)
    return consumers


def _back_edges(boxes: int, edges: Sequence[Edge]) -> set[Edge]:
    """Return the edges that close a cycle, in a depth-first walk from the boxes without inputs."""
    consumers = _consumers(boxes, edges)
    fed = {consumer for _, consumer in edges}
    state = [0] * boxes  # 1: on the way, 2: done
    back: set[Edge] = set()
    for start in sorted(range(boxes), key=lambda box: (box in fed, box)):
        stack = [] if state[start] else [(start, iter(consumers[start]))]
        state[start] = state[start] or 1
        while stack:
            box, rest = stack[-1]
            consumer = next(rest, None)
            if consumer is None:
                state[box] = 2
                stack.pop()
            elif state[consumer] == 1:
                back.add((box, consumer))
            elif state[consumer] == 0:
                state[consumer] = 1
                stack.append((consumer, iter(consumers[consumer])))
    return back


def _ranks(boxes: int, edges: Sequence[Edge]) -> list[int]:
    """Return the layer of each box: as high as its producers allow; a box with as many consumers moves down to them."""
    consumers, producers = _consumers(boxes, edges), _consumers(boxes, [(b, a) for a, b in edges])
    waiting = [len(inputs) for inputs in producers]
    queue = deque(box for box in range(boxes) if not waiting[box])
    order: list[int] = []
    ranks = [0] * boxes
    while queue:
        box = queue.popleft()
        order.append(box)
        for consumer in consumers[box]:
            ranks[consumer] = max(ranks[consumer], ranks[box] + 1)
            waiting[consumer] -= 1
            if not waiting[consumer]:
                queue.append(consumer)
    for box in reversed(order):
        if len(consumers[box]) >= max(len(producers[box]), 1):
            ranks[box] = min(ranks[consumer] for consumer in consumers[box]) - 1
    used = {rank: place for place, rank in enumerate(sorted(set(ranks)))}
    return [used[rank] for rank in ranks]


def _short_enough(boxes: int, edges: Sequence[Edge], ranks: Sequence[int]) -> list[Edge]:
    """Return the edges that go through the layers: all of them, unless that would need too many places to pass."""
    longest = max((ranks[b] - ranks[a] for a, b in edges), default=0)
    while True:
        short = [(a, b) for a, b in edges if ranks[b] - ranks[a] <= longest]
        spans: dict[int, int] = {}
        for a, b in short:
            spans[a] = max(spans.get(a, 0), ranks[b] - ranks[a] - 1)
        if longest <= 1 or sum(spans.values()) <= BENDS + 4 * boxes:
            return short
        longest //= 2


def _first_order(net: Net) -> list[list[int]]:
    """Return every layer in the order of a depth-first walk along the edges."""
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
    """Sort layers in sweeps down and up by the mean of their neighbours, and keep the best order seen."""
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
    """Sort one layer by the mean place of its neighbours in the adjacent one; boxes without any keep their place."""
    there = {place: at for at, place in enumerate(net.layers[beside])}
    scale = len(there) / len(net.layers[rank])
    middles: dict[int, float] = {}
    for at, place in enumerate(net.layers[rank]):
        near = neighbours[place]
        middles[place] = sum(there[neighbour] for neighbour in near) / len(near) if near else at * scale
    net.layers[rank].sort(key=middles.__getitem__)


def _crossings(net: Net) -> int:
    """Return how many pairs of edges cross."""
    crossings = 0
    for upper, lower in zip(net.layers, net.layers[1:], strict=False):
        there = {place: at for at, place in enumerate(lower)}
        passed: list[int] = []
        for place in upper:
            ends = sorted(there[below] for below in net.down[place])
            crossings += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return crossings


Point = tuple[float, float]
BESIDE, PASSING = 22.0, 12.0  # between two boxes; beside an edge that passes
BETWEEN = 34.0  # two layers
LANE = 8.0  # between edges that go around
LANES = 40
FITTINGS = 8


class Layout(Struct, frozen=True):
    """The top left corner of every box, and every edge as the points it runs through."""

    width: float
    height: float
    places: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


def layout(boxes: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """Return a place for every (width, height) and a route for every edge; edges that close a cycle go around."""
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
    """Return the upper and lower end of each layer, with space above and below if an edge goes around."""
    tops, bottoms = list[float](), list[float]()
    y = BETWEEN if net.around else 0.0
    for layer in net.layers:
        tops.append(y)
        bottoms.append(y + max((boxes[place][1] for place in layer if place < net.boxes), default=0.0))
        y = bottoms[-1] + BETWEEN
    return tops, bottoms


def _middles(net: Net, widths: Sequence[float]) -> list[float]:
    """Return the horizontal positions: repeatedly as near to the neighbours as the layer allows."""
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
    """Return the minimum distances between the centres of neighbours in a layer."""
    return [
        (widths[a] + widths[b]) / 2 + (BESIDE if a < net.boxes and b < net.boxes else PASSING)
        for a, b in itertools.pairwise(layer)
    ]


def _wanted(net: Net, place: int, near: Sequence[int], xs: Sequence[float]) -> tuple[float, float]:
    """Return the median position of the neighbours of the same sort, and its weight: largest for long edges.

    Boxes follow boxes if there are any; otherwise an edge that skips a row of boxes would pull the row aside.
    """
    if not near:
        return xs[place], 0.1
    passing = place >= net.boxes
    alike = [neighbour for neighbour in near if (neighbour >= net.boxes) == passing]
    positions = sorted(xs[neighbour] for neighbour in alike or near)
    half = len(positions) // 2
    middle = positions[half] if len(positions) % 2 else (positions[half - 1] + positions[half]) / 2
    return middle, (8.0 if alike else 0.01) if passing else 1.0


def _fitted(wanted: Sequence[tuple[float, float]], apart: Sequence[float]) -> list[float]:
    """Return the positions nearest to the wanted ones (least squares) that keep the order and the distances."""
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


class _Drawn(Struct, frozen=True):
    """The placed boxes, for routing edges."""

    net: Net
    boxes: Sequence[tuple[float, float]]
    middles: Sequence[float]
    ys: Sequence[float]
    tops: Sequence[float]
    bottoms: Sequence[float]
    width: float

    def routes(self, edges: Sequence[Edge]) -> tuple[tuple[Point, ...], ...]:
        """Return a route for every edge, in the order of the edges."""
        entries = self._entries()
        lanes = {producer: at % LANES for at, producer in enumerate(sorted({a for a, _ in self.net.around}))}
        through: dict[int, list[int]] = {}
        routes: dict[Edge, tuple[Point, ...]] = {}
        for producer, consumer in sorted(set(edges)):
            if (producer, consumer) in self.net.around:
                way = self._around((producer, consumer), lanes[producer])
                routes[producer, consumer] = self._entered(way, consumer, entries[producer, consumer])
            else:
                through.setdefault(producer, []).append(consumer)
        for producer, consumers in through.items():
            way, rank = self._left(producer), self.net.ranks[producer] + 1
            for consumer in sorted(consumers, key=self.net.ranks.__getitem__):  # from the top down
                for passed in range(rank, self.net.ranks[consumer]):
                    x = self.middles[self.net.bends[producer, passed]]
                    _go_on(way, (x, self.tops[passed]))
                    _go_on(way, (x, self.bottoms[passed]))
                rank = max(rank, self.net.ranks[consumer])
                routes[producer, consumer] = self._entered(way, consumer, entries[producer, consumer])
        return tuple(routes[edge] for edge in edges)

    def _entries(self) -> dict[Edge, float]:
        """Return where each edge enters its consumer: side by side, in the order of their origins."""
        incoming: dict[int, list[tuple[float, Edge]]] = {}
        for consumer in range(self.net.boxes):
            for above in self.net.up[consumer]:
                edge = (self.net.passing.get(above, above), consumer)
                incoming.setdefault(consumer, []).append((self.middles[above], edge))
        for edge in sorted(self.net.around):
            incoming.setdefault(edge[1], []).append((self.width, edge))
        entries: dict[Edge, float] = {}
        for consumer, coming in incoming.items():
            coming.sort()
            step = min(self.boxes[consumer][0] * 0.7 / len(coming), 18.0)
            for at, (_, edge) in enumerate(coming):
                entries[edge] = self.middles[consumer] + (at - (len(coming) - 1) / 2) * step
        return entries

    def _left(self, producer: int) -> list[Point]:
        """Return the points where edges leave their producer and its layer."""
        x = self.middles[producer]
        return without_idle(
            [(x, self.ys[producer] + self.boxes[producer][1]), (x, self.bottoms[self.net.ranks[producer]])]
        )

    def _entered(self, way: Sequence[Point], consumer: int, x: float) -> tuple[Point, ...]:
        """Return a route extended from its end into the consumer."""
        route = list(way)
        _go_on(route, (x, self.tops[self.net.ranks[consumer]]))
        _go_on(route, (x, self.ys[consumer]))
        return tuple(route)

    def _around(self, edge: Edge, lane: int) -> list[Point]:
        """Return a route on the right of all boxes."""
        producer, consumer = edge
        x = self.width + LANE * (1 + lane)
        below, above = self.bottoms[self.net.ranks[producer]], self.tops[self.net.ranks[consumer]]
        return [*self._left(producer), (x, below + BETWEEN / 2), (x, above - BETWEEN / 2)]


def without_idle(points: Iterable[Point]) -> list[Point]:
    """Return the points without those that lie between two others on a vertical line."""
    route: list[Point] = []
    for point in points:
        _go_on(route, point)
    return route


def _go_on(route: list[Point], point: Point) -> None:
    """Append a point; one between two others on a vertical line is dropped."""
    while len(route) > 1 and route[-1][0] == route[-2][0] == point[0]:
        route.pop()
    if not route or route[-1] != point:
        route.append(point)
