"""Regions follow memory: in-place writes, views, slices, and values needed in between."""

from __future__ import annotations

from analysis.costs.building import Building
from sardonyx.records.analysis import ALONE
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.program import OpKind

IMAGE = (1, 4, 6, 6)
BYTES = 4 * 6 * 6 * 4
FILTERS = 4 * 4 * 3 * 3 * 4


def _convolution(building: Building, read: int, *, in_place: bool) -> int:
    made = building.op(OpKind.CONVOLUTION, [read, building.weight((4, 4, 3, 3))], IMAGE)
    statistics = [building.weight((4,)) for _ in range(4)]
    if in_place:
        return building.into(made, OpKind.BATCH_NORM, statistics)
    return building.op(OpKind.BATCH_NORM, [made, *statistics], IMAGE)


def _block(in_place: bool, same_value: bool) -> Building:
    """relu(bn(conv(x)) + x), all in place or each in its own memory."""
    building = Building()
    x = building.input(IMAGE)
    normed = _convolution(building, x, in_place=in_place)
    if in_place:
        summed = building.into(normed, OpKind.ARITHMETIC, [x], same_value=same_value)
        building.into(summed, OpKind.ACTIVATION, same_value=same_value)
    else:
        summed = building.op(OpKind.ARITHMETIC, [normed, x], IMAGE)
        building.op(OpKind.ACTIVATION, [summed], IMAGE)
    return building


def test_convolution_norm_residual_and_activation_are_one_region_in_place_or_not() -> None:
    for in_place, same_value in ((False, False), (True, False), (True, True)):
        building = _block(in_place, same_value)
        (region,) = partition(building.program(building.operations[-1].writes[0]))
        assert region.rule == "conv-bn-activation"
        assert (region.bytes_in, region.weight_bytes, region.bytes_out) == (BYTES, FILTERS + 4 * 4 * 4, BYTES)
        assert (region.internal_bytes, region.reread_bytes, region.escapes) == (6 * BYTES, BYTES, ())


def test_a_convolution_multiplied_with_a_function_of_itself_ends_there() -> None:
    building = Building()
    normed = _convolution(building, building.input(IMAGE), in_place=False)
    pooled = building.op(OpKind.REDUCTION, [normed], (1, 4, 1, 1))
    gate = building.op(OpKind.ACTIVATION, [building.op(OpKind.CONVOLUTION, [pooled], (1, 4, 1, 1))], (1, 4, 1, 1))
    program = building.program(building.op(OpKind.ARITHMETIC, [normed, gate], IMAGE))
    regions = partition(program)
    assert [region.rule for region in regions] == ["conv-bn-activation", ALONE, "conv-bn-activation", ALONE]
    assert [region.depends_on for region in regions] == [(), (0,), (1,), (0, 2)]


def test_reads_of_old_contents_run_before_the_overwriting_operation() -> None:
    building = Building()
    x = building.input((2, 3))
    old = building.op(OpKind.OTHER, [x], (2, 3))
    reader = building.op(OpKind.OTHER, [building.view(old, (3, 2))], (3, 2))
    building.into(old, OpKind.OTHER)
    late = building.op(OpKind.OTHER, [old], (2, 3))  # the name is old, the contents are new
    regions = partition(building.program(reader, late))
    assert [region.depends_on for region in regions] == [(), (0,), (0, 1), (2,)]


def test_writes_into_an_input_escape() -> None:
    building = Building()
    cache, x = building.input((4, 6)), building.input((1, 6))
    row = building.view(cache, (1, 6))
    building.into(row, OpKind.COPY, [x])
    read = building.op(OpKind.ACTIVATION, [cache], (4, 6))
    copied, acted = partition(building.program(read))
    assert (copied.bytes_out, acted.depends_on) == (24, (0,))
    assert acted.bytes_in == 96


def test_a_value_partly_written_by_a_region_is_an_input_of_it() -> None:
    building = Building()
    whole = building.op(OpKind.OTHER, [building.input((4, 6))], (4, 6))
    part = building.view(whole, (1, 6))
    building.into(part, OpKind.ACTIVATION)
    program = building.program(building.op(OpKind.ACTIVATION, [whole], (4, 6)))
    regions = partition(program)
    assert [(region.bytes_in, region.bytes_out) for region in regions] == [(96, 96), (24, 24), (96, 96)]
    assert [region.depends_on for region in regions] == [(), (0,), (0, 1)]


def test_slices_count_their_own_size_and_whole_tensors_once() -> None:
    building = Building()
    packed = building.input((3, 10))
    parts = [building.view(packed, (1, 10)) for _ in range(3)]
    summed = building.op(OpKind.ARITHMETIC, parts[:2], (1, 10))
    thrice = building.op(OpKind.ARITHMETIC, [summed, parts[2]], (1, 10))
    (region,) = partition(building.program(thrice))
    assert (region.bytes_in, region.reread_bytes) == (120, 0)

    building = Building()
    packed = building.input((3, 10))
    turned, first = building.view(packed, (10, 3)), building.view(packed, (1, 10))
    (region,) = partition(building.program(building.op(OpKind.OTHER, [packed, turned, first], (1,))))
    assert region.bytes == 120 + 4


def test_a_broadcast_view_counts_its_stored_size() -> None:
    building = Building()
    small = building.input((1, 8))
    wide = building.op(OpKind.COPY, [building.view(small, (100, 8))], (100, 8))
    (region,) = partition(building.program(wide))
    assert (region.bytes_in, region.bytes_out) == (32, 3200)


def test_the_shape_operand_of_a_view_runs_before_it() -> None:
    building = Building()
    x, ids = building.input((2, 6)), building.input((2,), "int64")
    acted = building.op(OpKind.ACTIVATION, [x], (2, 6))
    shape = building.op(OpKind.OTHER, [ids], (2,), dtype="int64")
    turned = building.view(building.view(acted, (6, 2), also=[shape]), (12,))
    used = building.op(OpKind.ACTIVATION, [turned], (12,))
    regions = partition(building.program(used))
    assert [region.rule for region in regions] == [ALONE, "elementwise"]
    assert regions[1].depends_on == (0,)
    assert regions[1].bytes_in == 48


def test_no_region_is_formed_where_another_must_run_in_between() -> None:
    building = Building()
    x = building.input((2, 3))
    summed = building.op(OpKind.ARITHMETIC, [x], (2, 3))
    normed = building.op(OpKind.NORM, [summed], (2, 3))
    other = building.op(OpKind.OTHER, [summed], (2, 3))
    joined = building.op(OpKind.ARITHMETIC, [normed, other], (2, 3))  # the norm could include it without `other`
    program = building.program(joined)
    regions = partition(program)
    assert [region.operations for region in regions] == [(0, 1), (2,), (3,)]
    assert regions[0].escapes == (summed,)


def test_a_view_of_an_input_that_is_an_output_is_its_own_region() -> None:
    building = Building()
    x = building.input((2, 3))
    (region,) = partition(building.program(building.view(x, (6,))))
    assert (region.rule, region.operations, region.bytes) == (ALONE, (0,), 0)


def test_a_value_partly_written_by_a_region_does_not_count_as_its_own() -> None:
    building = Building()
    whole = building.op(OpKind.OTHER, [building.input((4, 6))], (4, 6))
    half = building.view(whole, (2, 6))
    building.into(half, OpKind.ACTIVATION)
    folded = building.op(OpKind.ARITHMETIC, [whole], (2, 6))  # as many elements as the half, computed from the whole
    made, region = partition(building.program(folded))
    assert (region.rule, region.depends_on) == ("elementwise", (0,))
    assert region.bytes_in == 48 + 96
    assert made.bytes_out == 96
