"""Liveness matches a direct simulation of the set of live buffers; views and outputs behave as documented."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analysis.costs.programs import BATCH, EXAMPLE, SEQ, Sketch, in_blocks, programs
from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import value_of
from sardonyx.records.analysis import Alive
from sardonyx.verbs.analyze.costs.peak_memory import liveness, thinned
from sardonyx.verbs.analyze.costs.program import Program, Store

SIZES = st.fixed_dictionaries({name: st.integers(1, 30) for name in EXAMPLE})


def _touches(program: Program, buffer: int, step: int) -> bool:
    operation = program.operations[step]
    return any(program.values[value].buffer == buffer for value in (*operation.reads, *operation.writes))


def _kept(program: Program, sizes: dict[str, int], *, as_run: bool = False) -> list[int]:
    """Simulate the set of live buffers: release a buffer only after checking every later step."""
    there, seen = set[int](), list[int]()
    answers = {program.values[value].buffer for value in program.outputs}
    for step, operation in enumerate(program.operations):
        there |= {program.values[value].buffer for value in operation.writes}
        there = {buffer for buffer in there if program.buffers[buffer].store is Store.ACTIVATION}
        sizes_kept = [value_of(program.buffers[buffer].bytes, sizes) for buffer in there]
        sizes_kept.append(value_of(operation.workspace, sizes))
        seen.append(sum(sizes_kept))
        for buffer in set(there):
            later = any(_touches(program, buffer, after) for after in range(step + 1, len(program.operations)))
            is_dead = program.buffers[buffer].died == step if as_run else not later and buffer not in answers
            if is_dead:
                there.remove(buffer)
    return seen


@pytest.mark.slow
@given(programs(), SIZES, st.sampled_from((1, 512)))
@settings(max_examples=200, deadline=None)
def test_liveness_matches_a_direct_simulation(program: Program, sizes: dict[str, int], block: int) -> None:
    program = in_blocks(program, block)
    result = liveness(program)
    expected = _kept(program, sizes)
    peak = result.at(sizes)
    assert result.values(sizes) == expected
    assert peak.bytes == max(expected, default=0)
    assert peak.step == (expected.index(peak.bytes) if expected else None)
    assert sum(one.bytes for one in peak.alive) + peak.workspace == peak.bytes == sum(peak.modules.values())


@pytest.mark.slow
@given(programs(), SIZES, st.data())
@settings(max_examples=100, deadline=None)
def test_as_run_releases_where_the_recording_did(program: Program, sizes: dict[str, int], data: st.DataObject) -> None:
    watched = list(program.buffers)
    for index, buffer in enumerate(watched):
        if buffer.store is Store.ACTIVATION:
            later = st.integers(max(s for s in range(len(program.operations)) if _touches(program, index, s)), 15)
            died = data.draw(st.none() | later)
            watched[index] = replace(buffer, died=died)
    program = replace(program, buffers=tuple(watched))
    run = liveness(program, as_run=True)
    assert run.values(sizes) == _kept(program, sizes, as_run=True)


def test_weights_and_inputs_are_counted_separately() -> None:
    sketch = Sketch()
    x, w = sketch.given(Store.INPUT, (BATCH, 3)), sketch.given(Store.WEIGHT, (5,))
    made = sketch.run((x, w), (BATCH, SEQ), module="layer")
    peak = liveness(sketch.program((made,))).at({"batch": 4, "seq": 9})
    assert (peak.bytes, peak.weights, peak.inputs) == (4 * 4 * 9, 4 * 5, 4 * 4 * 3)
    assert peak.alive == (Alive(144, "layer", "op0"),)


def test_writing_into_an_input_takes_no_memory_of_its_own() -> None:
    sketch = Sketch()
    made = sketch.share((sketch.given(Store.INPUT, (8,)),))
    assert liveness(sketch.program((made,))).at().bytes == 0


def test_a_view_keeps_its_buffer_alive_and_allocates_none() -> None:
    sketch = Sketch()
    made = sketch.run((sketch.given(Store.INPUT, (8,)),), (100,))
    view = sketch.share((made,))
    other = sketch.run((view,), (10,))
    last = sketch.run((view, other), (1,))
    assert liveness(sketch.program((last,))).values() == [400, 400, 440, 444]


def test_outputs_stay_live_and_unused_values_do_not() -> None:
    sketch = Sketch()
    x = sketch.given(Store.INPUT, (8,))
    answer, unread, last = sketch.run((x,), (100,)), sketch.run((x,), (50,)), sketch.run((x,), (1,))
    assert unread == answer + 1
    assert liveness(sketch.program((answer, last))).values() == [400, 600, 404]


def test_a_program_without_operations_has_no_peak() -> None:
    sketch = Sketch()
    x = sketch.given(Store.INPUT, (8,))
    peak = liveness(sketch.program((x,))).at()
    assert (peak.bytes, peak.step, peak.operation, peak.inputs) == (0, None, None, 32)


def test_sizes_default_to_those_of_the_example() -> None:
    sketch = Sketch()
    made = sketch.run((sketch.given(Store.INPUT, (8,)),), (BATCH, SEQ))
    result = liveness(sketch.program((made,)))
    assert result.at().bytes == 4 * 2 * 7
    assert result.at({"seq": 10}).bytes == 4 * 2 * 10


@pytest.mark.parametrize("sizes", [{"sq": 4}, {"seq": 0}])
def test_an_unknown_dim_or_invalid_size_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        liveness(Sketch().program(())).at(sizes)


@given(st.lists(st.integers(0, 99), max_size=300), st.integers(1, 60))
def test_thinning_keeps_the_first_maximum_within_the_limit(values: list[int], most: int) -> None:
    kept = thinned(values, most)
    assert len(kept) <= most
    assert all(values[step] == bytes_ for step, bytes_ in kept)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    if values:
        assert (values.index(max(values)), max(values)) in kept
    if len(values) <= most:
        assert kept == tuple(enumerate(values))
