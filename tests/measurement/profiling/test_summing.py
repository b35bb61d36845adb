"""Times of calls become times of kernels and of modules: medians over runs, sums over calls, nothing counted twice."""

from __future__ import annotations

import pytest

from sardonyx.records.bench import KernelTime, Slice, TracedBy
from sardonyx.records.provenance import Hierarchy
from sardonyx.verbs.profile.kernel_origins import GraphStep, Steps
from sardonyx.verbs.profile.profiler import KernelCall, Run, kernel_times, match, module_times, timeline

INNER = GraphStep("inner", "Exp", "", (), (), {})
LOOP = GraphStep("loop", "Loop", "", (), (), {"body": Steps([INNER], {})})
LAST = GraphStep("last", "Sin", "own", (), (), {}, tags={"__module_path": "head"})
GRAPH = Steps([LOOP, LAST], {})


def run(inner: float, loop: float, last: float) -> Run:
    """Two iterations of a loop, then one more step, starting at 100."""
    calls = [
        KernelCall("inner", "Exp", "cpu", 110, inner),
        KernelCall("inner", "Exp", "cpu", 110 + inner, inner),
        KernelCall("loop", "Loop", "cpu", 105, 2 * inner + loop),
        KernelCall("last", "Sin", "cpu", 200, last),
    ]
    return Run(100, 300, calls)


def kernel(owner: str | None, milliseconds: float, calls: int = 1) -> KernelTime:
    return KernelTime("k", "Exp", "cpu", (), (), owner, TracedBy.NAME, milliseconds, calls)


def test_a_kernel_time_is_the_median_over_runs_of_its_calls_without_their_bodies() -> None:
    matched = [
        (each, summed) for each in (run(10, 3, 7), run(20, 5, 9), run(12, 90, 8)) if (summed := match(each, GRAPH))
    ]
    places, summed = kernel_times(matched, {})
    assert [(each.name, each.milliseconds, each.calls) for each in summed] == [
        ("loop", pytest.approx(0.005), 1),
        ("inner", pytest.approx(0.024), 2),
        ("last", pytest.approx(0.008), 1),
    ]
    assert places == {LOOP: 0, INNER: 1, LAST: 2}
    first, matches = matched[0]
    assert timeline(first, matches, places) == (Slice(0, 5, 23), Slice(1, 10, 10), Slice(1, 20, 10), Slice(2, 100, 7))


def test_an_untraced_kernel_has_no_owner_unless_it_has_a_module_tag() -> None:
    [trace] = [each for each in (match(run(1, 1, 1), GRAPH),) if each]
    _, (loop, _, last) = kernel_times([(run(1, 1, 1), trace)], {})
    assert (loop.owner, loop.traced_by) == (None, TracedBy.NOTHING)
    assert (last.owner, last.traced_by, last.op_type) == ("head", TracedBy.ATTRIBUTE, "own::Sin")


def test_modules_include_the_time_of_their_descendants() -> None:
    sums = module_times(
        [kernel("a.b", 2, 3), kernel("a.b", 1), kernel("a", 4), kernel("", 1), kernel(None, 2)], Hierarchy()
    )
    assert [(each.path, each.self_ms, each.total_ms, each.kernels, each.calls, each.share) for each in sums] == [
        ("", 1, 8, 1, 1, 0.8),
        ("a", 4, 7, 1, 1, 0.7),
        ("a.b", 3, 3, 2, 4, 0.3),
    ]


def test_children_follow_their_parent_despite_common_name_prefixes() -> None:
    paths = [each.path for each in module_times([kernel("a.c", 1), kernel("a-b", 1), kernel("a", 1)], Hierarchy())]
    assert paths == ["", "a", "a.c", "a-b"]
