"""Slices that together cover a value become one Split, at any place in the graph."""

from __future__ import annotations

import numpy as np
import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.layout.eliminate_split_concat import EliminateSplitConcat
from sardonyx.passes.layout.merge_slices_into_split import MergeSlicesIntoSplit

PASSES = (MergeSlicesIntoSplit(),)
CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] last = {-1},
    int64[1] back = {-4}, int64[1] end = {9223372036854775807}, int64[1] six = {6}>"""


@pytest.mark.parametrize("opset", [10, 13, 18])
@pytest.mark.parametrize(
    "slices",
    [
        ("Slice(x, zero, two, one)", "Slice(x, two, six, one)"),
        ("Slice(x, two, end, last)", "Slice(x, zero, two, one)"),
        ("Slice(x, zero, back, last)", "Slice(x, back, end, last)"),
        ("Slice(x, zero, two, one, one)", "Slice(x, two, end, one, one)"),
    ],
)
def test_two_parts_in_any_form_and_order(slices: tuple[str, str], opset: int) -> None:
    text = graph_text(
        f"""agraph (float[N, 6] w) => (float[A, B] y, float[C, D] z) {CONSTANTS} {{
        x = Neg(w)  a = {slices[0]}  y = Abs(a)  b = {slices[1]}  z = Neg(b) }}""",
        opset,
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Split", "Abs", "Neg"]
    assert_same(text, model)


def test_three_parts_and_a_consumer_of_the_whole() -> None:
    text = graph_text(f"""agraph (float[N, 6] w) => (float[A, B] y, float[N, 6] u) {CONSTANTS} {{
        x = Neg(w)  c = Slice(x, five, end, one)  b = Slice(x, two, five, one)  a = Slice(x, zero, two, one)
        y = Concat <axis = 1> (c, a, b)  u = Abs(x) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Split", "Concat", "Abs"]
    assert_same(text, model)


@pytest.mark.parametrize(
    ("slices", "kind"),
    [
        (("Slice(x, zero, two, one)", "Slice(x, five, end, one)"), "[N, 6]"),  # a gap
        (("Slice(x, zero, five, one)", "Slice(x, two, end, one)"), "[N, 6]"),  # an overlap
        (("Slice(x, zero, two, one)", "Slice(x, two, five, one)"), "[N, 6]"),  # the end is missing
        (("Slice(x, zero, two, zero)", "Slice(x, two, end, one)"), "[6, 6]"),  # two axes
        (("Slice(x, zero, end, one, two)", "Slice(x, one, end, one, two)"), "[N, 6]"),  # every second one
        (("Slice(x, zero, two, zero)", "Slice(x, two, end, zero)"), "[N, 6]"),  # dynamic size
    ],
)
def test_other_slices_stay(slices: tuple[str, str], kind: str) -> None:
    text = graph_text(f"""agraph (float{kind} w) => (float[A, B] y, float[C, D] z) {CONSTANTS} {{
        x = Neg(w)  a = {slices[0]}  y = Abs(a)  b = {slices[1]}  z = Neg(b) }}""")
    model, _ = run_passes(text, PASSES)
    assert "Split" not in op_types(model)


@pytest.mark.parametrize(
    ("parts", "axis", "left"),
    [("a, b", 1, 0), ("a, b", -1, 0), ("b, a", 1, 1), ("a, a", 1, 1), ("a, b", 0, 1), ("a", 1, 1)],
)
def test_concatenated_parts(parts: str, axis: int, left: int) -> None:
    text = graph_text(f"""agraph (float[N, M] w, float[N, M] v) => (float[A, B] y, float[C, D] z) {{
        x = Neg(w)  a, b = Split <axis = 1, num_outputs = 2> (x)  c = Concat <axis = {axis}> ({parts})
        y = Neg(c)  z = Abs(v) }}""")
    model, log = run_passes(text, (EliminateSplitConcat(),))
    assert op_types(model).count("Concat") == left
    assert bool(reasons(log)) == bool(left)
    if left == 0:
        feeds = {"w": np.arange(8, dtype=np.float32).reshape(2, 4), "v": np.ones((2, 4), np.float32)}
        assert_same(text, model, feeds=feeds)
