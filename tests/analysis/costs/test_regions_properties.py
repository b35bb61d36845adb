"""Properties of the regions of any program, with views, in-place writes and values with several uses."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.costs.building import programs, run_in
from analysis.costs.traffic import bytes_unfused, traffic
from narrowing import integer
from sardonyx.ir.shapes.expr import total
from sardonyx.verbs.analyze.costs.dataflow import Quotient, moved
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.program import OpKind, Program, Store


@pytest.mark.slow
@given(programs())
@settings(max_examples=100, deadline=None)
def test_every_operation_is_in_one_region_and_regions_follow_their_dependencies(program: Program) -> None:
    regions = partition(program)
    assert sorted(step for region in regions for step in region.operations) == list(range(len(program.operations)))
    assert all(earlier < index for index, region in enumerate(regions) for earlier in region.depends_on)


@pytest.mark.slow
@given(programs(steps=20), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_regions_in_any_valid_order_compute_the_same(program: Program, random: Random) -> None:
    regions = partition(program)
    waiting, order, done = list(range(len(regions))), list[int](), set[int]()
    while waiting:
        ready = [index for index in waiting if done.issuperset(regions[index].depends_on)]
        index = random.choice(ready)
        waiting.remove(index)
        done.add(index)
        order += regions[index].operations
    assert run_in(program, order) == run_in(program, list(range(len(program.operations))))


@pytest.mark.slow
@given(programs())
@settings(max_examples=100, deadline=None)
def test_traffic_saved_by_fusion_is_the_sum_over_regions(program: Program) -> None:
    parts = partition(program)
    at = traffic(program, parts).at()
    assert at.unfused == total(one.bytes for one in moved(program)) == total(bytes_unfused(one) for one in parts)
    inner = [each for region in parts for each in (region.internal_bytes, region.reread_bytes)]
    assert at.kept_out == total(inner)
    assert all(integer(size) >= 0 for size in (*inner, *(region.bytes_in for region in parts)))
    assert 0 <= at.reduction < 1
    assert at.fused_weights <= at.unfused_weights
    for region in parts:
        work = [step for step in region.operations if program.operations[step].kind is not OpKind.VIEW]
        if len(work) < 2:
            assert region.internal_bytes == region.reread_bytes == 0
            assert not region.escapes


def _crossing(program: Program, steps: set[int]) -> tuple[int, int, int, set[int]]:
    """In, weights, out and escapes of a region of a program without views and writing in place, by their definition."""
    operations, values = program.operations, program.values
    inside = {value for step in steps for value in operations[step].writes}
    outside = {value for step, one in enumerate(operations) if step not in steps for value in one.reads}
    used = {value for step in steps for value in operations[step].reads}
    entering = used - inside
    weights = {value for value in entering if program.buffers[values[value].buffer].store is Store.WEIGHT}
    needed = {value for value in inside if value in outside or value in program.outputs}
    out = needed | (inside - used)
    sizes = [integer(total(values[value].bytes for value in some)) for some in (entering - weights, weights, out)]
    return sizes[0], sizes[1], sizes[2], needed & used


@pytest.mark.slow
@given(programs(ways=("op", "op", "ops")))
@settings(max_examples=100, deadline=None)
def test_bytes_that_cross_a_region_boundary(program: Program) -> None:
    for region in partition(program):
        steps = set(region.operations)
        if any(program.operations[step].kind is OpKind.LOOKUP for step in steps):
            continue  # reads less than its operands: see test_traffic.py
        given_ = (region.bytes_in, region.weight_bytes, region.bytes_out, set(region.escapes))
        assert given_ == _crossing(program, steps)


@pytest.mark.slow
@given(st.integers(2, 12), st.data())
@settings(max_examples=100, deadline=None)
def test_merging_is_refused_exactly_where_it_creates_a_cycle(count: int, data: st.DataObject) -> None:
    before = [
        set(data.draw(st.lists(st.integers(0, step - 1), max_size=2))) if step else set() for step in range(count)
    ]
    quotient, group = Quotient(range(count), before), {step: {step} for step in range(count)}
    for _ in range(data.draw(st.integers(1, 6))):
        steps = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=3, unique=True))
        united = set[int]().union(*(group[step] for step in steps))
        tried = {**group, **dict.fromkeys(united, united)}
        is_fine = _canrun_in(tried, before)
        assert quotient.merge(steps) == is_fine
        group = tried if is_fine else group
        done = set[int]()
        assert {frozenset(one) for one in quotient.groups()} == {frozenset(one) for one in group.values()}
        for one in quotient.groups():
            assert all(before[step] <= done | set(one) for step in one)
            done |= set(one)


def _canrun_in(group: dict[int, set[int]], before: list[set[int]]) -> bool:
    name = {step: min(members) for step, members in group.items()}
    graph = {one: set[int]() for one in name.values()}
    for step, earlier in enumerate(before):
        graph[name[step]] |= {name[one] for one in earlier} - {name[step]}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True
