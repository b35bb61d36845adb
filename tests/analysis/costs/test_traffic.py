"""Traffic with and without fusion: by hand, as expressions, and for operators that read part of an operand."""

from __future__ import annotations

import pytest

from analysis.costs.building import Building
from analysis.costs.traffic import TrafficAt, traffic
from sardonyx.ir.shapes.expr import Size, add, multiply, symbol, value_of
from sardonyx.verbs.analyze.costs.dataflow import moved
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.program import OpKind, Program

D = 8


def _mlp(batch: Size, /, **symbols: int) -> Program:
    """gelu(x @ W1 + b1) @ W2, then a residual and a norm."""
    building = Building()
    x = building.input((batch, D))
    product = building.op(OpKind.MATMUL, [x, building.weight((D, 32))], (batch, 32), macs=multiply(batch, 32 * D))
    biased = building.op(OpKind.ARITHMETIC, [product, building.weight((32,))], (batch, 32))
    acted = building.op(OpKind.ACTIVATION, [biased], (batch, 32))
    narrow = building.op(OpKind.MATMUL, [acted, building.weight((32, D))], (batch, D), macs=multiply(batch, 32 * D))
    summed = building.op(OpKind.ARITHMETIC, [narrow, x], (batch, D))
    normed = building.op(OpKind.NORM, [summed, building.weight((D,)), building.weight((D,))], (batch, D))
    return building.program(normed, **symbols)


def test_an_mlp_by_hand() -> None:
    program = _mlp(3)
    parts = traffic(program, partition(program)).at()
    row, wide, weights = 3 * D * 4, 3 * 32 * 4, (2 * D * 32 + 32 + 2 * D) * 4
    unfused = (row + wide) + (wide + wide) + (wide + wide) + (wide + row) + (2 * row + row) + (row + row) + weights
    fused = (row + wide) + (wide + row) + (2 * row + row) + weights
    assert parts == TrafficAt(unfused, fused, weights, weights)
    assert parts.kept_out == 4 * wide + 2 * row
    assert parts.reduction == (4 * wide + 2 * row) / unfused


def test_totals_are_expressions_in_dynamic_dims() -> None:
    batch = symbol("batch")
    open_, example = _mlp(batch, batch=3), _mlp(3)
    whole = traffic(open_, partition(open_))
    assert whole.fused == add(multiply(batch, (8 + 32 + 32 + 8 + 3 * 8) * 4), (2 * D * 32 + 32 + 2 * D) * 4)
    for size in (1, 3, 50):
        closed = _mlp(size)
        assert whole.at({"batch": size}) == traffic(closed, partition(closed)).at()
    assert whole.at() == traffic(example, partition(example)).at()


def test_only_the_gathered_rows_of_a_table_count() -> None:
    building = Building()
    ids, table = building.input((4,), "int64"), building.weight((1000, D))
    program = building.program(building.op(OpKind.LOOKUP, [table, ids], (4, D)))
    (one,) = moved(program)
    assert (one.read, one.weights, one.written) == (4 * 8, 4 * D * 4, 4 * D * 4)
    building = Building()
    ids, table = building.input((4000,), "int64"), building.weight((10, D))
    (one,) = moved(building.program(building.op(OpKind.LOOKUP, [table, ids], (4000, D))))
    assert one.weights == 10 * D * 4  # no more than there is


def test_a_repeated_operand_counts_once_and_views_count_nothing() -> None:
    building = Building()
    x = building.input((2, D))
    squared = building.op(OpKind.ARITHMETIC, [x, building.view(x, (D, 2)), x], (2, D))
    seen, made = moved(building.program(building.view(squared, (2 * D,))))[:2]
    assert seen.bytes == 0
    assert made.bytes == 2 * 2 * D * 4


def test_an_unknown_dim_is_refused_not_guessed() -> None:
    program = _mlp(symbol("batch"))
    with pytest.raises(KeyError):
        traffic(program, partition(program)).at({})
    assert value_of(traffic(program, partition(program)).fused_weights, {}) == (2 * D * 32 + 32 + 2 * D) * 4


def test_an_empty_program_moves_no_bytes() -> None:
    building = Building()
    program = building.program(building.input((2, 3)))
    assert traffic(program, partition(program)).at().reduction == 0.0
