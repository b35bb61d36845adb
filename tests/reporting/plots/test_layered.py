"""Layouts of graphs: nothing overlaps, edges point down and end at their boxes, for any graph."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.reporting.plots.layered import Layout, layout

Graph = tuple[list[tuple[float, float]], list[tuple[int, int]]]


@st.composite
def graphs(draw: st.DrawFn, acyclic: bool = False) -> Graph:
    boxes = draw(st.lists(st.tuples(st.floats(1, 300), st.floats(1, 60)), max_size=25))
    if len(boxes) < 2:
        return boxes, []
    places = st.integers(0, len(boxes) - 1)
    edges = draw(st.lists(st.tuples(places, places), max_size=50))
    return boxes, [(min(e), max(e)) for e in edges if e[0] != e[1]] if acyclic else edges


def overlapping(boxes: list[tuple[float, float]], placed: Layout) -> list[tuple[int, int]]:
    rects = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(placed.places, boxes, strict=True)]
    return [
        (i, j)
        for (i, a), (j, b) in itertools.combinations(enumerate(rects), 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@given(graphs())
def test_boxes_never_overlap_and_everything_is_inside(graph: Graph) -> None:
    boxes, edges = graph
    placed = layout(boxes, edges)
    assert overlapping(boxes, placed) == []
    for (x, y), (w, h) in zip(placed.places, boxes, strict=True):
        assert -1e-6 <= x <= x + w <= placed.width + 1e-6
        assert -1e-6 <= y <= y + h <= placed.height + 1e-6
    for x, y in itertools.chain.from_iterable(placed.routes):
        assert math.isfinite(x)
        assert -1e-6 <= x <= placed.width + 1e-6
        assert math.isfinite(y)
        assert -1e-6 <= y <= placed.height + 1e-6


@given(graphs())
def test_routes_leave_at_the_bottom_and_enter_at_the_top(graph: Graph) -> None:
    boxes, edges = graph
    placed = layout(boxes, edges)
    assert len(placed.routes) == len(edges)
    for (producer, reader), route in zip(edges, placed.routes, strict=True):
        (mx, my), (mw, mh) = placed.places[producer], boxes[producer]
        (rx, ry), (rw, _) = placed.places[reader], boxes[reader]
        assert abs(route[0][1] - (my + mh)) < 1e-6
        assert mx <= route[0][0] <= mx + mw
        assert abs(route[-1][1] - ry) < 1e-6
        assert rx <= route[-1][0] <= rx + rw


@given(graphs(acyclic=True))
def test_edges_of_a_graph_without_cycles_point_down(graph: Graph) -> None:
    boxes, edges = graph
    placed = layout(boxes, edges)
    for (producer, reader), route in zip(edges, placed.routes, strict=True):
        assert placed.places[producer][1] + boxes[producer][1] < placed.places[reader][1]
        assert all(above[1] <= below[1] + 1e-6 for above, below in itertools.pairwise(route))


@given(graphs(acyclic=True))
def test_edges_cross_no_box(graph: Graph) -> None:
    boxes, edges = graph
    placed = layout(boxes, edges)
    for edge, route in zip(edges, placed.routes, strict=True):
        for (ax, ay), (bx, by) in itertools.pairwise(route):
            for box, ((x, y), (w, h)) in enumerate(zip(placed.places, boxes, strict=True)):
                beside = max(ax, bx) <= x + 1e-6 or min(ax, bx) >= x + w - 1e-6
                apart = max(ay, by) <= y + 1e-6 or min(ay, by) >= y + h - 1e-6
                assert box in edge or beside or apart


@given(graphs())
def test_layout_is_deterministic(graph: Graph) -> None:
    assert layout(*graph) == layout(*graph)


def test_a_chain_is_straight() -> None:
    placed = layout([(40, 20), (90, 20), (60, 20)], [(0, 1), (1, 2)])
    assert {x + w / 2 for (x, _), w in zip(placed.places, (40, 90, 60), strict=True)} == {45.0}
    assert all(len(route) == 2 for route in placed.routes)


def test_a_skip_edge_passes_beside_the_skipped_boxes() -> None:
    placed = layout([(40, 20)] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    skipped = [x for x, y in placed.routes[3] if placed.places[1][1] <= y <= placed.places[2][1] + 20]
    assert all(x < placed.places[1][0] or x > placed.places[1][0] + 40 for x in skipped)
    assert len(skipped) >= 2


def test_crossed_edges_are_untangled() -> None:
    placed = layout([(40, 20)] * 4, [(0, 3), (1, 2)])
    assert (placed.places[0][0] < placed.places[1][0]) == (placed.places[3][0] < placed.places[2][0])


@pytest.mark.slow
def test_layout_of_thousands_of_boxes_and_hostile_edges_terminates() -> None:
    size = 2000
    boxes = [(60.0, 20.0)] * size
    chain = [(i, i + 1) for i in range(size - 1)]
    skips = [(i, size - 1) for i in range(0, size - 2, 3)] + [(i, min(i + 7, size - 1)) for i in range(0, size, 5)]
    cycle = [(size - 1, 0), (5, 5), (900, 100)]
    placed = layout(boxes, chain + skips + cycle)
    assert len(placed.places) == size
    heights = [y for _, y in placed.places]
    assert heights == sorted(heights)
