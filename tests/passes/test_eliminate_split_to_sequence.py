"""Parts selected from a sequence become outputs of one Split, for every way to give their sizes."""

from __future__ import annotations

import pytest
from onnx import parser

import sardonyx
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.layout.eliminate_split_to_sequence import EliminateSplitToSequence

PASSES = (EliminateSplitToSequence(),)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("split", "picks", "parts"),
    [
        ("SplitToSequence <axis = 1> (x, three)", ("i0", "i1"), 3),  # 3, 3 and the rest
        ("SplitToSequence <axis = -1> (x, sizes)", ("i1", "last"), 3),
        ("SplitToSequence <axis = 1, keepdims = 1> (x)", ("i0", "last"), 7),
        ("SplitToSequence <axis = 1> (x, three)", ("last", "last"), 3),
    ],
)
def test_parts_are_outputs_of_one_split(split: str, picks: tuple[str, str], parts: int, opset: int) -> None:
    text = graph_text(
        f"""agraph (float[N, 7] w) => (float[A, B] y, float[C, D] z)
        <int64 three = {{3}}, int64[3] sizes = {{4, 1, 2}}, int64 i0 = {{0}}, int64 i1 = {{1}}, int64 last = {{-1}}> {{
            x = Neg(w)  s = {split}  a = SequenceAt(s, {picks[0]})  y = Abs(a)  b = SequenceAt(s, {picks[1]})
            z = Neg(b) }}""",
        opset,
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Split", "Abs", "Neg"]
    assert len(next(node for node in model.graph if node.op_type == "Split").outputs) == parts
    assert_same(text, model)


def test_parts_without_the_axis_are_squeezed() -> None:
    text = graph_text("""agraph (float[N, 3] x) => (float[N] y) <int64 i = {1}> {
        s = SplitToSequence <axis = 1, keepdims = 0> (x)  a = SequenceAt(s, i)  y = Neg(a) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model).count("Split") == 1
    assert "SequenceAt" not in op_types(model)
    assert_same(text, model)


def test_a_sequence_that_is_read_as_one_stays() -> None:
    text = graph_text("""agraph (float[N, 4] x) => (float[N, 2] y, int64 n) <int64 two = {2}, int64 i = {1}> {
        s = SplitToSequence <axis = 1> (x, two)  y = SequenceAt(s, i)  n = SequenceLength(s) }""")
    model, log = run_passes(text, PASSES)
    assert "SplitToSequence" in op_types(model)
    assert "its parts are read as a sequence" in reasons(log)


def test_a_dynamic_axis_stays() -> None:
    text = graph_text("""agraph (float[N, 4] x) => (float[A, 4] y) <int64 two = {2}, int64 i = {0}> {
        s = SplitToSequence <axis = 0> (x, two)  y = SequenceAt(s, i) }""")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["SplitToSequence", "SequenceAt"]
    assert "the number of its parts is unknown" in reasons(log)


def test_a_scalar_is_not_split() -> None:
    """No runtime accepts it, but an optimizer must not fail on it."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]> agraph (int64[N] x) => (int64[N] y)
        <int64 one = {1}, int64 i = {0}> { s = SplitToSequence(one, x)  y = SequenceAt(s, i) }""")
    assert sardonyx.optimize(model, verify="off").after.nodes == 2
