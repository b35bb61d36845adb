"""Where the boxes of a graph stand and how its edges run: makers above readers, few crossings, straight edges.

Our own because a page draws one module at a time: some dozens of boxes, laid out when the page is written, the same
every time. Boxes are put into layers (`layers.py`), then each layer is fitted to its neighbours without changing its
order. Edges leave a box at the bottom and enter at the top; between layers there is nothing they could run through.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sardonyx.rendering.pictures.layers import Edge, Net, layered

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
