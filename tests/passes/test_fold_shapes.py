"""Static sizes become constants; dynamic sizes stay computed."""

from __future__ import annotations

import numpy as np
import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.folding.fold_shapes import FoldShapes
from sardonyx.passes.folding.fold_view_targets import FoldViewTargets

PASSES = (FoldShapes(),)
CONSTANTS = """<
    int64 first = {0}, int64 last = {-1}, int64[2] pair = {1, -1}, int64[1, 1] deep = {1}, int64[1] a0 = {0},
    int64[1] a1 = {1}, int64[1] big = {2147483647}, int64[1] two = {2}, int64[1] m1 = {-1}
>"""

# The nodes that compute a size, the rank of the result, and whether it is known for float[N, 3, 4].
CALLS = [
    ("s = Shape(x)  d = Gather(s, last)", 0, True),
    ("s = Shape(x)  d = Gather(s, first)", 0, False),
    ("s = Shape(x)  d = Gather(s, pair)", 1, True),
    ("s = Shape(x)  d = Gather(s, deep)", 2, True),
    ("s = Shape(x)  d = Slice(s, a1, big)", 1, True),
    ("s = Shape(x)  d = Slice(s, a1, big, a0)", 1, True),
    ("s = Shape(x)  d = Slice(s, a0, m1)", 1, False),
    ("s = Shape(x)  d = Slice(s, a1, big, a0, two)", 1, True),
    ("s = Shape(x)  d = Slice(s, m1, a0, a0, m1)", 1, True),
    ("d = Shape <start = 1> (x)", 1, True),
    ("d = Shape <start = -2, end = -1> (x)", 1, True),
    ("d = Shape <start = -9, end = 9> (x)", 1, False),
    ("d = Shape <start = -4> (x)", 1, False),  # a start before the first dim is the first dim
    ("d = Shape <start = 2, end = 1> (x)", 1, True),
    ("d = Shape <end = 1> (x)", 1, False),
    ("s = Shape <start = 1> (x)  d = Gather(s, first)", 0, True),
    ("d = Size(x)", 0, False),
    ("t = Slice(x, a0, a1, a0)  d = Size(t)", 0, False),
]


@pytest.mark.parametrize(("call", "rank", "folds"), CALLS)
def test_only_numbers_are_folded(call: str, rank: int, folds: bool) -> None:
    dims = f"[{', '.join(f'D{axis}' for axis in range(rank))}]" if rank else ""
    text = graph_text(f"agraph (float[N, 3, 4] x) => (int64{dims} y) {CONSTANTS} {{ {call}  y = Neg(d) }}")
    model, _ = run_passes(text, PASSES)
    assert {"Shape", "Size"}.isdisjoint(op_types(model)) == folds
    assert_same(text, model)


def test_the_size_of_a_static_tensor_is_a_scalar() -> None:
    text = graph_text("agraph (float[2, 3] x) => (int64 y) { a = Size(x)  y = Neg(a) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg"]
    assert_same(text, model)


def test_zero_sizes_are_numbers_too() -> None:
    text = graph_text(
        "agraph (float[0, 3] x) => (int64[2] y, int64 z) { a = Shape(x)  y = Neg(a)  b = Size(x)  z = Neg(b) }"
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Neg"]
    assert_same(text, model)


def test_a_shape_that_others_read_stays_for_them() -> None:
    text = graph_text(f"""agraph (float[N, 4] x) => (int64 y, int64[2] z) {CONSTANTS} {{
        s = Shape(x)  d = Gather(s, last)  y = Neg(d)  z = Neg(s) }}""")
    model, _ = run_passes(text, PASSES)
    assert sorted(op_types(model)) == ["Neg", "Neg", "Shape"]
    assert_same(text, model)


def test_a_size_that_is_a_graph_output_keeps_its_name() -> None:
    text = graph_text("agraph (float[2, 3] x) => (int64[2] y) { y = Shape(x) }")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Shape"]
    assert any("lose its name" in reason for reason in reasons(log))


def test_gather_along_another_value_is_not_a_size() -> None:
    text = graph_text(f"agraph (int64[3] x) => (int64 y) {CONSTANTS} {{ s = Neg(x)  d = Gather(s, last)  y = Neg(d) }}")
    assert len(op_types(run_passes(text, PASSES)[0])) == 3


def test_an_index_out_of_range_stays_for_the_runtime_to_report() -> None:
    text = graph_text(
        "agraph (float[2, N] x) => (int64 y) <int64 i = {7}> { s = Shape <start = 1> (x)  y = Gather(s, i) }"
    )
    assert "Gather" in op_types(run_passes(text, PASSES)[0])


# The parts of the target, the type of the input, the rank of the result, and the constant it becomes.
TARGETS = [
    ("t = Concat <axis = 0> (n, four)", "float[N, 2, 2]", 2, [0, 4]),
    ("t = Concat <axis = 0> (four, n)", "float[N, 2, 2]", 2, [4, -1]),
    ("t = Concat <axis = 0> (n, m, two, two)", "float[N, M, 4]", 4, [0, 0, 2, 2]),
    ("t = Concat <axis = 0> (n, m, minus, two)", "float[N, M, 4]", 4, [0, 0, 2, 2]),
    ("t = Concat <axis = 0> (minus, m)", "float[N, M]", 2, [0, 0]),
    ("t = Concat <axis = 0> (m, n)", "float[N, M]", 2, None),
    ("t = Concat <axis = 0> (n, minus)", "float[N, M, 4]", 2, [0, -1]),
]


@pytest.mark.parametrize(("call", "kind", "rank", "target"), TARGETS)
def test_a_computed_target_becomes_the_constant_it_must_be(
    call: str, kind: str, rank: int, target: list[int] | None
) -> None:
    dims = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(f"""agraph ({kind} x) => (float[{dims}] y)
        <int64[1] a0 = {{0}}, int64[1] a1 = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] minus = {{-1}}>
        {{
            s = Shape(x)  n = Gather(s, a0)  m = Gather(s, a1)  {call}  a = Neg(x)  y = Reshape(a, t) }}""")
    model, log = run_passes(text, (FoldViewTargets(),))
    (view,) = [node for node in model.graph if node.op_type == "Reshape"]
    shape = view.inputs[1]
    assert shape is not None
    assert (None if shape.const_value is None else shape.const_value.numpy().tolist()) == target
    assert target is not None or "more than one dim of its result is dynamic" in reasons(log)
    assert_same(text, model)


def test_an_empty_batch_still_reshapes() -> None:
    """-1 is used only with numbers: with a copied dim of size zero it would be an error."""
    text = graph_text("""agraph (float[N, M, 4] x) => (float[A, B, C, D] y)
        <int64[1] a0 = {0}, int64[1] a1 = {1}, int64[1] two = {2}> {
            s = Shape(x)  n = Gather(s, a0)  m = Gather(s, a1)  t = Concat <axis = 0> (n, m, two, two)
            y = Reshape(x, t) }""")
    model, _ = run_passes(text, (FoldViewTargets(),))
    assert_same(text, model, feeds={"x": np.zeros((0, 3, 4), np.float32)})


@pytest.mark.parametrize("call", ["Expand(x, t)", "Reshape <allowzero = 1> (x, t)"])
def test_expand_and_allowzero_targets_are_folded(call: str) -> None:
    text = graph_text(f"agraph (float[1, 3] x, float[2, 3] z) => (float[A, B] y) {{ t = Shape(z)  y = {call} }}")
    if "Reshape" in call:
        text = text.replace("float[1, 3] x", "float[3, 2] x")
    model, _ = run_passes(text, (FoldViewTargets(),))
    view = next(node for node in model.graph if node.op_type in ("Expand", "Reshape"))
    assert view.inputs[1] is not None
    assert view.inputs[1].const_value is not None
    assert_same(text, model)


def test_constant_of_shape_keeps_its_value() -> None:
    text = graph_text(
        "agraph (float[2, 3] x) => (int64[2, 3] y) { s = Shape(x)  y = ConstantOfShape <value = int64[1] {7}> (s) }"
    )
    model, _ = run_passes(text, (FoldViewTargets(),))
    made = next(node for node in model.graph if node.op_type == "ConstantOfShape")
    assert made.inputs[0] is not None
    assert made.inputs[0].const_value is not None
    assert_same(text, model)
