"""Helpers for arithmetic patterns."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.util import graph_text, parse
from sardonyx.ir.facts import Facts
from sardonyx.passes._matching import (
    consumer_of,
    other_operand,
    producer_of,
    require_closed,
    value_and_factor,
    value_and_scalar,
)
from sardonyx.passes.base import Refused
from sardonyx.passes.norms._arithmetic import broadcast_constant, factored, last_axes, near, power, uncast

CONSTANTS = "float two = {2}, float[1, 1] four = {4}, float[1, 1, 1] far = {5}, float zero = {0}, float[2] row = {1, 2}"


def graph(body: str, outputs: str = "float[A, B] y") -> tuple[Facts, dict[str, ir.Node]]:
    """Facts of a graph over x[N, 3], and the producer of each value."""
    text = graph_text(f"agraph (float[N, 3] x) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    facts = Facts(ir.from_proto(parse(text)))
    facts.infer()
    return facts, {output.name or "": node for node in facts.model.graph for output in node.outputs}


@pytest.mark.parametrize(
    ("written", "number"),
    [("Mul(x, two)", 2), ("Mul(two, x)", 2), ("Mul(four, x)", 4), ("Mul(x, far)", None), ("Mul(x, x)", None)],
)
def test_value_and_scalar_operand(written: str, number: float | None) -> None:
    facts, producers = graph(f"y = {written}", "float[A, B, C] y" if "far" in written else "float[A, B] y")
    match = value_and_scalar(producers["y"], facts)
    assert (None if match is None else match[1]) == number
    assert match is None or match[0].name == "x"


@pytest.mark.parametrize(
    ("written", "factor"),
    [("Mul(x, two)", 2), ("Div(x, four)", 0.25), ("Div(two, x)", None), ("Div(x, zero)", None), ("Add(x, two)", None)],
)
def test_value_and_factor(written: str, factor: float | None) -> None:
    facts, producers = graph(f"y = {written}")
    match = value_and_factor(producers["y"], facts)
    assert (None if match is None else match[1]) == factor


def test_factors_are_collected() -> None:
    facts, producers = graph("a = Exp(x)  b = Mul(a, two)  c = Div(b, four)  d = Mul(four, c)  y = Neg(d)")
    *_, term = factored(producers["d"].outputs[0], producers["y"], facts)
    assert term.source.name == "a"
    assert term.factor == 2
    assert [node.outputs[0].name for node in term.nodes] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("written", "exponent"),
    [("Mul(x, x)", 2), ("Pow(x, four)", 4), ("Sqrt(x)", 0.5), ("Reciprocal(x)", -1), ("Mul(x, two)", None)],
)
def test_powers(written: str, exponent: float | None) -> None:
    facts, producers = graph(f"y = {written}")
    match = power(producers["y"], facts)
    assert (None if match is None else match[1]) == exponent


def test_a_reciprocal_is_a_power_and_two_over_x_is_not() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] a, float[N] b) <float one = {1}, float two = {2}>"
                      " { a = Div(one, x)  b = Div(two, x) }")  # fmt: skip
    facts = Facts(ir.from_proto(parse(text)))
    first, second = facts.model.graph
    assert power(first, facts) is not None
    assert power(second, facts) is None


def test_casts_are_skipped_if_they_preserve_every_value() -> None:
    """From half to float and on to double, but not from float to half."""
    facts, producers = graph(
        "a = Cast <to = 10> (x)  b = Cast <to = 1> (a)  c = Cast <to = 11> (b)  y = Neg(c)", "double[A, B] y"
    )
    value, casts = uncast(producers["c"].outputs[0], producers["y"], facts)
    assert value.name == "a"
    assert [node.outputs[0].name for node in casts] == ["c", "b"]


def test_operands_producers_and_consumers() -> None:
    facts, producers = graph("a = Exp(x)  b = Add(a, x)  y = Mul(b, b)")
    exp, add, product = producers["a"], producers["b"], producers["y"]
    assert other_operand(add, exp.outputs[0]) is add.inputs[1]
    assert other_operand(product, add.outputs[0]) is add.outputs[0]
    assert other_operand(product, exp.outputs[0]) is None
    assert producer_of(add.inputs[0], product, ("Exp",)) is exp
    assert producer_of(add.inputs[0], product, ("Log",)) is None
    assert consumer_of(exp.outputs[0], facts, ("Add",)) is add
    assert consumer_of(exp.outputs[0], facts, ("Mul",)) is None
    assert consumer_of(add.outputs[0], facts, ("Mul",)) is None, "it is read twice"


def test_values_of_a_match_that_are_read_outside() -> None:
    _, producers = graph("a = Exp(x)  b = Add(a, x)  y = Neg(b)", "float[A, B] y, float[C, D] b")
    a, b, y = (producers[name] for name in ("a", "b", "y"))
    require_closed((a, b))
    for nodes in ((a, b, y), (a, y)):
        with pytest.raises(Refused, match="a value inside is read elsewhere"):
            require_closed(nodes)


@pytest.mark.parametrize(
    ("number", "dtype", "equal"),
    [
        (float(np.float32(2**0.5)), ir.DataType.FLOAT, True),
        (float(np.float16(2**0.5)), ir.DataType.FLOAT, False),
        (float(np.float16(2**0.5)), ir.DataType.FLOAT16, True),
        (1.414, ir.DataType.FLOAT, False),
        (float(np.float32(2**0.5)), ir.DataType.DOUBLE, False),
        (2**0.5, None, True),
        (1.4142135, None, False),
    ],
)
def test_constants_are_compared_within_the_precision_of_their_type(
    number: float, dtype: ir.DataType | None, equal: bool
) -> None:
    assert near(number, 2**0.5, dtype) == equal


@pytest.mark.parametrize(
    ("axes", "rank", "count"),
    [
        ((-1,), None, 1),
        ((2,), 3, 1),
        ((2,), None, None),
        ((1, 2), 3, 2),
        ((-1, -2), None, 2),
        ((1, -1), 3, 2),
        ((0,), 3, None),
        ((-2,), None, None),
        ((0, 2), 3, None),
        ((-1, -1), 3, None),
        ((), 3, None),
        (None, 3, 3),
        (None, None, None),
    ],
)
def test_last_axes(axes: tuple[int, ...] | None, rank: int | None, count: int | None) -> None:
    assert last_axes(axes, rank) == count


@pytest.mark.parametrize(
    ("shape", "sizes", "fits"),
    [
        ((3,), (2, 3), True),
        ((1, 1, 2, 3), (2, 3), True),
        ((2, 1, 3), (2, 3), False),
        ((4,), (3,), False),
        ((), (3,), True),
    ],
)
def test_constants_are_expanded_to_the_axes(shape: tuple[int, ...], sizes: tuple[int, ...], fits: bool) -> None:
    array = broadcast_constant(ir.tensor(np.ones(shape, np.float32)), sizes)
    assert (array is not None and array.numpy().shape == sizes) == fits
