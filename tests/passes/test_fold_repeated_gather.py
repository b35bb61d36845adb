"""A row that is looked up for every token, and consecutive shifts of positions, are folded."""

from __future__ import annotations

import pytest

from passes.util import assert_same_on_uneven_sizes, graph_text, op_types, run_passes
from sardonyx.passes.broadcasting.fold_repeated_gather import FoldRepeatedGather
from sardonyx.passes.broadcasting.merge_integer_sums import MergeIntegerSums


def lookup(indices: str, ids: str = "0, 0, 0, 0, 0, 0") -> str:
    """Segments of every token, gathered from a constant [1, 6]."""
    return graph_text(f"""
        agraph (float[B, S, 2] x) => (float[B, S, 2] y)
        <float[3, 2] table = {{1, 2, 3, 4, 5, 6}}, int64[1, 6] ids = {{{ids}}},
         int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
            n = Shape <start = 1, end = 2> (x)  s = Shape <start = 0, end = 2> (x)
            {indices}  r = Gather(table, i)  y = Add(r, x)
        }}""")


@pytest.mark.parametrize(
    "indices", ["i = Slice(ids, zero, n, one)", "e = Slice(ids, zero, n, one)  i = Expand(e, s)", "i = Expand(one, s)"]
)
def test_the_same_row_for_all(indices: str) -> None:
    model, _ = run_passes(lookup(indices), [FoldRepeatedGather()])
    gather = next(node for node in model.graph if node.op_type == "Gather")
    assert gather.inputs[1] is not None
    assert gather.inputs[1].const_value is not None
    assert_same_on_uneven_sizes(lookup(indices), model)


@pytest.mark.parametrize("ids", ["0, 0, 0, 0, 0, 1", "7, 7, 7, 7, 7, 7"])
def test_rows_that_differ_or_are_out_of_range_stay(ids: str) -> None:
    _, log = run_passes(lookup("i = Slice(ids, zero, n, one)", ids), [FoldRepeatedGather()])
    assert not log.events


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(
    "body", ["a = Add(x, p)  y = Sub(a, q)", "a = Sub(x, p)  y = Add(q, a)", "a = Add(p, x)  y = Add(a, q)"]
)
def test_two_shifts_are_one(kind: str, body: str) -> None:
    text = graph_text(
        f"agraph ({kind}[B, S] x) => ({kind}[B, S] y) <{kind} p = {{5}}, {kind}[1] q = {{2}}> {{ {body} }}"
    )
    model, _ = run_passes(text, [MergeIntegerSums()])
    assert op_types(model) == ["Add"]
    assert_same_on_uneven_sizes(text, model)


@pytest.mark.parametrize(
    "body", ["a = Sub(p, x)  y = Add(a, q)", "a = Mul(x, p)  y = Add(a, q)", "a = Add(x, p)  y = Sub(q, a)"]
)
def test_others_are_not(body: str) -> None:
    text = graph_text(f"agraph (int64[B, S] x) => (int64[B, S] y) <int64 p = {{5}}, int64[1] q = {{2}}> {{ {body} }}")
    _, log = run_passes(text, [MergeIntegerSums()])
    assert not log.events


def test_floats_stay() -> None:
    """Their sums are rounded."""
    text = graph_text(
        "agraph (float[B] x) => (float[B] y) <float p = {5}, float q = {2}> { a = Add(x, p)  y = Add(a, q) }"
    )
    _, log = run_passes(text, [MergeIntegerSums()])
    assert not log.events
