"""Boxes and edges in layers: which layer every box is in, where long edges pass, and in which order a layer stands.

The first half of the layered layout in `layered.py`. Nothing recurses, and nothing takes long on purpose: graphs come
from files, may be cyclic, and may have thousands of boxes in a row.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
