"""A Gather of certainly all rows is removed; one that may not gather all stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.util import assert_same_on_uneven_sizes, graph_text, op_types, outputs, parse, reasons, run_passes
from sardonyx.passes.broadcasting.eliminate_full_gather import EliminateFullGather

CONSTANTS = """
    <int64[3] behind = {1, 2, 3}, int64[1] flat = {-1}, int64 zero = {0}, int64 one = {1}, int64 two = {2},
     int64[1] second = {1}, int64[3] front = {0, 1, 2}, int64[2] edges = {0, 2}>
"""


def text(body: str, result: str = "B, 1, 1, S") -> str:
    """A mask [B, S] read by row and column; `b` and `n` are its sizes, `f` is the flattened mask."""
    sizes = "a = Not(x)  f = Reshape(a, flat)  s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)"
    return graph_text(f"agraph (bool[B, S] x) => (bool[{result}] y) {CONSTANTS} {{ {sizes} {body} }}")


ROWS = "r = Range(zero, b, one)  c = Range(zero, n, one)  rr = Unsqueeze(r, behind)"


@pytest.mark.parametrize(
    "body",
    [
        f"{ROWS}  o = Mul(rr, n)  i = Add(o, c)  y = Gather(f, i)",
        f"{ROWS}  o = Mul(n, rr)  i = Add(c, o)  y = Gather(f, i)",
        f"{ROWS}  m = Gather(s, second)  cc = Unsqueeze(c, front)  o = Mul(rr, m)  i = Add(cc, o)  y = Gather(f, i)",
        f"{ROWS}  o = Mul(rr, n)  i = Add(o, c)  k = Cast <to = 6> (i)  y = Gather(f, k)",
    ],
)
def test_all_rows_in_any_index_form(body: str) -> None:
    model, _ = run_passes(text(body), [EliminateFullGather()])
    assert op_types(model).count("Gather") <= 3  # the remaining ones read sizes
    assert "Unsqueeze" in op_types(model)
    assert not any(node.op_type == "Gather" and node.outputs[0].name == "y" for node in model.graph)
    assert_same_on_uneven_sizes(text(body), model)


@pytest.mark.parametrize(
    "body",
    [
        f"{ROWS}  o = Mul(rr, b)  i = Add(o, c)  k = Mod(i, n)  y = Gather(f, k)",  # steps of another size
        f"{ROWS}  i = Add(rr, c)  y = Gather(f, i)",  # rows one apart
        f"{ROWS}  o = Mul(rr, n)  t = Add(c, c)  k = Add(o, t)  i = Mod(k, n)  y = Gather(f, i)",
        f"{ROWS}  o = Mul(rr, n)  p = Add(o, c)  q = Mul(b, n)  i = Sub(p, q)  y = Gather(f, i)",  # from the end
        f"{ROWS}  o = Mul(rr, n)  p = Sub(o, c)  i = Abs(p)  y = Gather(f, i)",  # backwards
    ],
)
def test_other_indices_stay(body: str) -> None:
    model, log = run_passes(text(body), [EliminateFullGather()])
    assert not log.events
    assert_same_on_uneven_sizes(text(body), model)


def test_a_dim_that_may_be_repeated_does_not_count() -> None:
    """A range is added to zeros of an unrelated size: if the range has one element, all indices are equal."""
    body = """
        agraph (float[B] p, float[S] q) => (float[K] y) <int64 zero = {0}, int64 one = {1}> {
            s = Shape(p)  b = Squeeze(s)  t = Shape(q)  n = Squeeze(t)
            r = Range(zero, b, one)  c = Range(zero, n, one)  nothing = Mul(c, zero)  i = Add(r, nothing)
            a = Add(p, q)  y = Gather(a, i)
        }"""
    model, log = run_passes(graph_text(body), [EliminateFullGather()])
    assert not log.events
    alone = graph_text(body.replace("r, nothing", "r, zero").replace("Add(p, q)", "Neg(p)"))
    model, log = run_passes(alone, [EliminateFullGather()])
    assert log.events, "the same without what may repeat it"
    assert_same_on_uneven_sizes(alone, model)


def test_fewer_rows_than_there_are_is_refused() -> None:
    body = "c = Range(zero, n, one)  y = Gather(f, c)"
    _, log = run_passes(text(body, "S"), [EliminateFullGather()])
    assert not log.events
    assert any("all rows" in reason for reason in reasons(log))


PAIRS = f"""{ROWS}  cc = Unsqueeze(c, front)  most = Max(rr, cc)  all = Shape(most)
    er = Expand(rr, all)  ec = Expand(cc, all)  ur = Unsqueeze(er, minus)  uc = Unsqueeze(ec, minus)"""


def pairs(body: str, result: str = "B, 1, 1, S") -> str:
    """Pairs of indices."""
    return text(f"{PAIRS}  {body}", result).replace("int64[1] flat", "int64[1] minus = {-1}, int64[1] flat")


def test_pairs_of_row_and_column() -> None:
    model, _ = run_passes(pairs("i = Concat <axis = -1> (ur, uc)  y = GatherND(a, i)"), [EliminateFullGather()])
    assert "GatherND" not in op_types(model)
    assert_same_on_uneven_sizes(pairs("i = Concat <axis = -1> (ur, uc)  y = GatherND(a, i)"), model)


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose(a)  i = Concat <axis = -1> (uc, ur)  y = GatherND(t, i)",  # columns first: another order
        "k = Sub(uc, n)  i = Concat <axis = -1> (ur, k)  y = GatherND(a, i)",  # from the end
        "k = Mul(uc, zero)  i = Concat <axis = -1> (ur, k)  y = GatherND(a, i)",  # one column
    ],
)
def test_other_pairs_stay(body: str) -> None:
    model, log = run_passes(pairs(body), [EliminateFullGather()])
    assert not log.events
    assert_same_on_uneven_sizes(pairs(body), model)


COLUMNS = """
    agraph (float[B, S, 3] x, float[K] other) => (float[B, 1, K, 3] y)
    <int64[2] behind = {1, 2}, int64[2] front = {0, 1}, int64[1] minus = {-1}, int64 zero = {0}, int64 one = {1},
     int64 two = {2}> {
        a = Neg(x)  s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)  t = Shape(other)  k = Squeeze(t)
        r = Range(zero, b, one)  c = %s  rr = Unsqueeze(r, behind)  cc = Unsqueeze(c, front)
        most = Max(rr, cc)  all = Shape(most)  er = Expand(rr, all)  ec = Expand(cc, all)
        ur = Unsqueeze(er, minus)  uc = Unsqueeze(ec, minus)  i = Concat <axis = -1> (%s)  y = GatherND(a, i)
    }"""


@pytest.mark.parametrize("numbers", ["Range(zero, k, one)", "Range(one, k, two)", "Range(k, zero, minusone)"])
def test_all_rows_and_a_range_of_columns(numbers: str) -> None:
    """Of which there may be fewer than the table has, and none that it does not have."""
    body = (COLUMNS % (numbers, "ur, uc")).replace("int64 two", "int64 minusone = {-1}, int64 two")
    model, log = run_passes(graph_text(body), [EliminateFullGather()])
    assert log.events
    assert "GatherND" not in op_types(model)
    for batch, columns, count in ((2, 5, 3), (1, 4, 4), (3, 7, 1)):
        values = np.random.default_rng(0).standard_normal((batch, columns, 3)).astype(np.float32)
        feeds = {"x": values, "other": np.zeros(count, np.float32)}
        if "minusone" in numbers:
            feeds["x"] = np.concatenate([values, values], 1)
        (wanted,), (got,) = outputs(parse(graph_text(body)), feeds), outputs(ir.to_proto(model), feeds)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("numbers", "parts"),
    [
        ("Range(zero, k, one)", "uc, ur"),  # columns of the first axis
        ("Range(zero, k, one)", "ur, ur"),  # a diagonal
        ("Cast <to = 7> (other)", "ur, uc"),  # any numbers
    ],
)
def test_other_columns_stay(numbers: str, parts: str) -> None:
    _, log = run_passes(graph_text(COLUMNS % (numbers, parts)), [EliminateFullGather()])
    assert not log.events
