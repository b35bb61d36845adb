"""Operators that move elements are replaced by fewer or equally many equivalent ones."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, graph_text, op_types, run_passes
from sardonyx.passes.layout.merge_rearrangements import MergeRearrangements

PASSES = (MergeRearrangements(),)


def moved(kind: str, rank: int, body: str, constants: str = "", opset: int = 18) -> list[str]:
    """The remaining operators between x and y. The result must be equal."""
    dims = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(f"agraph (float{kind} w) => (float[{dims}] y) {constants} {{ x = Neg(w) {body} }}", opset)
    model, _ = run_passes(text, PASSES)
    assert_same(text, model)
    return op_types(model)[1:]


@pytest.mark.parametrize("batch", ["1", "3", "N"])
def test_windows_of_a_rolled_image_are_gathered_once(batch: str) -> None:
    constants = """<int64[1] z = {0}, int64[1] h = {1}, int64[1] e = {9223372036854775807}, int64[1] one = {1},
        int64[1] two = {2}, int64[6] t = {-1, 2, 2, 3, 2, 32}, int64[3] u = {-1, 4, 32}>"""
    left = moved(
        f"[{batch}, 4, 6, 32]",
        3,
        """s0 = Slice(x, z, h, one) s1 = Slice(x, h, e, one) s = Concat <axis = 1> (s1, s0)
        r0 = Slice(s, z, h, two) r1 = Slice(s, h, e, two) r = Concat <axis = -2> (r1, r0)
        a = Reshape(r, t) b = Transpose <perm = [0, 1, 3, 2, 4, 5]> (a) y = Reshape(b, u)""",
        constants,
    )
    assert left == (["Reshape", "Gather", "Reshape"] if batch == "N" else ["Reshape", "Gather"])


def test_a_roll_along_one_axis_is_one_gather() -> None:
    constants = "<int64[1] z = {0}, int64[1] m = {-2}, int64[1] e = {99}, int64[1] two = {2}>"
    body = "a = Slice(x, m, e, two) b = Slice(x, z, m, two) y = Concat <axis = 2> (a, b)"
    assert moved("[N, 3, 5, 32]", 4, body, constants) == ["Gather"]


def test_short_rows_are_not_gathered() -> None:
    constants = "<int64[1] z = {0}, int64[1] m = {-2}, int64[1] e = {99}, int64[1] two = {2}>"
    body = "a = Slice(x, m, e, two) b = Slice(x, z, m, two) y = Concat <axis = 2> (a, b)"
    assert moved("[N, 3, 5, 31]", 4, body, constants) == ["Slice", "Slice", "Concat"]


def test_every_second_row_and_column_side_by_side_is_a_transpose() -> None:
    constants = """<int64[1] z = {0}, int64[1] o = {1}, int64[1] e = {9223372036854775807}, int64[1] one = {1},
        int64[1] two = {2}>"""
    left = moved(
        "[1, 4, 6, 8]",
        4,
        """r0 = Slice(x, z, e, one, two) r1 = Slice(x, o, e, one, two) a = Slice(r0, z, e, two, two)
        b = Slice(r1, z, e, two, two) c = Slice(r0, o, e, two, two) d = Slice(r1, o, e, two, two)
        y = Concat <axis = -1> (a, b, c, d)""",
        constants,
    )
    assert left == ["Reshape", "Transpose", "Reshape"]


def test_unfolded_patches_are_one_transpose() -> None:
    constants = """<int64[4] s = {24, 2, 2, 2}, int64[4] t = {1, 12, -1, 4}, int64[3] u = {4, 4, -1}>"""
    left = moved(
        "[1, 12, 4, 4]",
        3,
        """a = Reshape(x, s) b = Transpose <perm = [0, 2, 1, 3]> (a) c = Reshape(b, t)
        d = Transpose <perm = [0, 3, 2, 1]> (c) y = Reshape(d, u)""",
        constants,
    )
    assert left == ["Reshape", "Transpose", "Reshape"]


def test_heads_split_in_unusual_forms_get_the_usual_form() -> None:
    constants = "<int64[3] s = {5, 3, 4}, int64[4] t = {1, 3, 5, 4}>"
    body = "a = Reshape(x, s) b = Transpose <perm = [1, 0, 2]> (a) y = Reshape(b, t)"
    assert moved("[5, 1, 12]", 4, body, constants) == ["Reshape", "Transpose"]


@pytest.mark.parametrize(
    ("kind", "perm", "left"),
    [
        ("[1, 5, 7]", [1, 0, 2], ["Reshape"]),
        ("[N, 1, 7]", [0, 2, 1], ["Reshape"]),
        ("[N, 1, 7]", [1, 0, 2], ["Transpose"]),  # the dynamic axis must not move
        ("[2, 5, 7]", [1, 0, 2], ["Transpose"]),
        ("[1, 1, 7, 2]", [2, 0, 3, 1], ["Reshape"]),
    ],
)
def test_a_transpose_that_moves_only_ones_is_a_view(kind: str, perm: list[int], left: list[str]) -> None:
    rank = len(perm)
    assert moved(kind, rank, f"y = Transpose <perm = {perm}> (x)") == left


def test_gathering_everything_in_order_is_a_view() -> None:
    constants = "<int64[2, 2] i = {0, 1, 2, 3}>"
    assert moved("[4, 3]", 3, "y = Gather(x, i)", constants) == ["Reshape"]
    pairs = "<int64[2, 1, 2] i = {0, 0, 0, 1}>"
    assert moved("[1, 2, 3]", 3, "y = GatherND(x, i)", pairs) == ["Reshape"]
    turned = "<int64[2, 1, 2] i = {0, 1, 0, 0}>"
    assert moved("[1, 2, 3]", 3, "y = GatherND(x, i)", turned) == ["GatherND"]


def test_concatenated_parts_are_the_whole() -> None:
    body = "a, b = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 1> (a, b)"
    text = graph_text(f"agraph (float[N, 4, 3] w) => (float[N, 4, 3] z) {{ x = Neg(w) {body} z = Abs(y) }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Abs"]


def test_missing_or_repeated_elements_stay() -> None:
    constants = "<int64[1] z = {0}, int64[1] m = {2}, int64[1] two = {2}>"
    body = "a = Slice(x, z, m, two) y = Concat <axis = 2> (a, x)"
    assert moved("[N, 3, 5, 32]", 4, body, constants) == ["Slice", "Concat"]
    body = "a = Slice(x, z, m, two) y = Concat <axis = 2> (a, a)"
    assert moved("[N, 3, 4, 32]", 4, body, constants) == ["Gather"]  # the same number of elements: the first half twice
    assert moved("[N, 3, 5, 32]", 4, body, constants) == ["Slice", "Concat"]


def test_an_inner_value_that_others_read_ends_the_region() -> None:
    text = graph_text("""agraph (float[4, 6] x) => (float[A, B, C] y, float[D, E, F] z)
        <int64[3] s = {2, 2, 6}, int64[3] t = {6, 2, 2}> {
            a = Reshape(x, s) b = Transpose <perm = [2, 0, 1]> (a) c = Reshape(b, t) y = Neg(c) z = Abs(a) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model)[:1] == ["Reshape"]
    assert_same(text, model)


def test_rows_that_a_product_of_computed_matrices_reads_keep_their_transpose() -> None:
    constants = "<int64[4] s = {2, 3, 4, 32}, int64[3] t = {8, 3, 32}>"
    body = "a = Reshape(x, s) b = Transpose <perm = [0, 2, 1, 3]> (a) c = Reshape(b, t)"
    text = graph_text(f"""agraph (float[2, 3, 128] x, float[8, 32, 5] k) => (float[8, 3, 5] y) {constants}
        {{ {body} y = MatMul(c, k) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Reshape", "Transpose", "Reshape", "MatMul"]
    assert moved("[2, 3, 128]", 3, f"{body} y = Neg(c)", constants) == ["Reshape", "Gather", "Neg"]


SHAPES = [(2, 3, 4), (1, 6, 4), (4, 6), (2, 2, 6), (1, 2, 12), (24,), (3, 1, 8), (2, 3, 2, 2)]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_chain_of_movements(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    wide = data.draw(st.sampled_from([1, 32]))
    nodes: list[onnx.NodeProto] = [oh.make_node("Neg", ["x"], ["v0"])]
    constants: list[onnx.TensorProto] = []
    now = (*shape, wide)
    source = now

    def constant(numbers: list[int]) -> str:
        constants.append(oh.make_tensor(f"c{len(constants)}", onnx.TensorProto.INT64, [len(numbers)], numbers))
        return constants[-1].name

    for step in range(data.draw(st.integers(1, 6))):
        before, after = f"v{step}", f"v{step + 1}"
        match data.draw(st.sampled_from(["Transpose", "Reshape", "Roll", "Gather"])):
            case "Transpose":
                perm = data.draw(st.permutations(range(len(now))))
                nodes.append(oh.make_node("Transpose", [before], [after], perm=perm))
                now = tuple(now[axis] for axis in perm)
            case "Reshape":
                now = (*data.draw(st.sampled_from(SHAPES)), wide)
                nodes.append(oh.make_node("Reshape", [before, constant(list(now))], [after]))
            case "Gather":
                axis = data.draw(st.integers(0, len(now) - 1))
                rows = data.draw(st.permutations(range(now[axis])))
                nodes.append(oh.make_node("Gather", [before, constant(list(rows))], [after], axis=axis))
            case _:
                axis = data.draw(st.integers(0, len(now) - 1))
                cut = constant([data.draw(st.integers(1, max(now[axis] - 1, 1)))])
                low, high = f"low{step}", f"high{step}"
                nodes.append(oh.make_node("Slice", [before, constant([0]), cut, constant([axis])], [low]))
                nodes.append(oh.make_node("Slice", [before, cut, constant([2**40]), constant([axis])], [high]))
                nodes.append(oh.make_node("Concat", [high, low], [after], axis=axis))
    last = nodes[-1].output[0]
    graph = oh.make_graph(
        nodes,
        "moves",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, source)],
        [oh.make_tensor_value_info(last, onnx.TensorProto.FLOAT, now)],
        constants,
    )
    proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    model, _ = run_passes(proto, PASSES)
    assert len(op_types(model)) <= len(nodes)
    size = math.prod(source)
    assert_same(proto, model, feeds={"x": np.arange(1, size + 1, dtype=np.float32).reshape(source)})
