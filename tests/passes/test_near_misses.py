"""Models on which a pass would compute something else, or fail, if one of its guards were weaker.

Each was found by removing a guard that no other test missed (`benchmarks/guards.py`).
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnx.printer
import pytest

from passes.test_contract import read, run, target_of
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes import ALL

PASSES = {one.name: one for one in ALL}
EPS = "float eps = {0.001}"
NORM = "m = ReduceMean <axes = [{axes}]> (x)  c = Sub(x, m)  s = Mul(c, c)  v = ReduceMean <axes = [{axes}]> (s)" + (
    "  e = Add(v, eps)  d = Sqrt(e)  n = Div(c, d)"
)
AS_RANGES = "s = Shape(x)  n = Gather(s, one)  at = Range({range})  c = {compare}  a = Not(x)  y = And(c, a)"
BOOLS = "(bool[B, 4] x) => (bool[B, 4] y) <int64 zero = {0}, int64 one = {1}, int64 back = {-1}, int64 three = {3}>"
QKV = "float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v"
PRODUCT = "t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, t)  "
ANGLES = (
    "c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)  "
    "s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)  "
)
CASES = {
    "several of its operands are not empty": (
        "eliminate-empty-operands",
        "(float[N, 4] x, float[N, 0] none, float[N, 3] z) => (float[N, 7] y) { y = Concat <axis = -1> (x, none, z) }",
        ["Concat"],
    ),
    "operands of unknown rank": (
        "eliminate-empty-operands",
        "(float[N] x, int64[K] to) => (float[M] y) <int64[1] all = {-1}> "
        "{ r = Reshape(x, to)  c = Concat <axis = 0> (r, r)  y = Reshape(c, all) }",
        ["Reshape", "Concat", "Reshape"],
    ),
    "a scale that is the normalised value itself": (
        "fuse-layer-norm",
        f"(float[3, 4] x) => (float[3, 4] y) <{EPS}> {{ {NORM.format(axes='-2, -1')}  y = Mul(n, n) }}",
        ["LayerNormalization", "Mul"],
    ),
    "a long axis with a scale": (
        "fuse-layer-norm",
        f"(float[2, 9000] x, float[9000] w) => (float[2, 9000] y) <{EPS}> "
        f"{{ {NORM.format(axes='-1')}  y = Mul(n, w) }}",
        ["LayerNormalization"],
    ),
    "a view that has axes in place of a target": (
        "eliminate-layout-roundtrips",
        "(float[6] x) => (float[2, 3] y) <int64[3] to = {2, 1, 3}, int64[1] axis = {1}> "
        "{ a = Reshape(x, to)  b = Relu(a)  y = Squeeze(b, axis) }",
        ["Relu", "Reshape"],
    ),
    "a range that falls below the other one": (
        "eliminate-true-conditions",
        f"{BOOLS} {{ {AS_RANGES.format(range='three, back, back', compare='GreaterOrEqual(zero, at)')} }}",
        ["Shape", "Gather", "Range", "GreaterOrEqual", "Not", "And"],
    ),
    "one element of a range is larger": (
        "eliminate-true-conditions",
        f"{BOOLS} {{ {AS_RANGES.format(range='zero, n, one', compare='GreaterOrEqual(at, one)')} }}",
        ["Shape", "Gather", "Range", "GreaterOrEqual", "Not", "And"],
    ),
    "an operand of unknown shape": (
        "eliminate-empty-operands",
        "(float[N, 4] x, int64[K] to) => (float[M, 4] y) { r = Reshape(x, to)  y = Concat <axis = 0> (r, x) }",
        ["Reshape", "Concat"],
    ),
    "a computed bias before a constant factor": (
        "fuse-norm-affine",
        "(float[N, 4] x, float[4] b) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}, float[4] by = {2, 3, 4, 5}> "
        "{ c = Exp(b)  n = LayerNormalization(x, w, c)  y = Mul(n, by) }",
        ["Exp", "LayerNormalization", "Mul"],
    ),
    "a sum with itself between two Transposes": (
        "eliminate-layout-roundtrips",
        "(float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Transpose <perm = [0, 2, 1]> (x)  b = Add(a, a)  "
        "y = Transpose <perm = [0, 2, 1]> (b) }",
        ["Transpose", "Add", "Transpose"],
    ),
    "ranges along the first axis, counted from the end": (
        "merge-slices",
        "(float[8, 4] x) => (float[6, 4] y) <int64[1] one = {1}, int64[1] end = {99}, int64[1] axis = {-2}> "
        "{ a = Slice(x, one, end, axis)  y = Slice(a, one, end, axis) }",
        ["Slice"],
    ),
    "a maximum of three": (
        "fold-where-branches",
        "(bool[N] c, float[N] x) => (float[N] y) <float two = {2}, float one = {1}, float three = {3}> "
        "{ a = Where(c, one, three)  y = Max(a, two, x) }",
        ["Where", "Max"],
    ),
    "a bias of unknown shape": (
        "fuse-matmul-add",
        "(float[N, 4] x, float[K] b, int64[R] to) => (float[N, 3] y) <float[4, 1] w = {1, 2, 3, 4}> "
        "{ p = MatMul(x, w)  r = Reshape(b, to)  y = Add(p, r) }",
        ["MatMul", "Reshape", "Add"],
    ),
    "a norm of integers that are cast": (
        "fuse-layer-norm",
        f"(int16[N, 4] i) => (int16[N, 4] y) <{EPS}> "
        f"{{ x = Cast <to = 1> (i)  {NORM.format(axes='-1')}  y = Cast <to = 5> (n) }}",
        ["Cast", "LayerNormalization", "Cast"],
    ),
    "a source of unknown rank": (
        "merge-reshapes",
        "(float[N] x, int64[K] to) => (float[M, 1, 4] y) <int64[2] four = {-1, 4}, int64[1] axis = {1}> "
        "{ r = Reshape(x, to)  e = Exp(r)  a = Reshape(e, four)  y = Unsqueeze(a, axis) }",
        ["Reshape", "Exp", "Reshape", "Unsqueeze"],
    ),
    "halves along two axes": (
        "fuse-rotary-embedding",
        "(float[2, 2, 3, 8] x, float[2, 3, 4] angle) => (float[2, 2, 3, 8] y) <int64[2] zero = {0, 0}, "
        "int64[2] half = {0, 4}, int64[2] middle = {2, 4}, int64[2] end = {2, 8}, int64[2] axes = {0, 3}, "
        "int64[1] one = {1}> {" + ANGLES + "left = Slice(x, zero, middle, axes)  right = Slice(x, half, end, axes)  "
        "minus = Neg(right)  turned = Concat <axis = -1> (minus, left)  a = Mul(x, cos)  b = Mul(turned, sin)  "
        "y = Add(a, b) }",
        [
            "Cos",
            "Concat",
            "Unsqueeze",
            "Sin",
            "Concat",
            "Unsqueeze",
            "Slice",
            "Slice",
            "Neg",
            "Concat",
            "Mul",
            "Mul",
            "Add",
        ],
        23,
    ),
    "a rotation beside something else": (
        "fuse-rotary-embedding",
        "(float[2, 2, 3, 8] x, float[2, 3, 4] angle) => (float[2, 2, 3, 16] y) <int64[1] zero = {0}, "
        "int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {"
        + ANGLES
        + "left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)  "
        "minus = Neg(right)  turned = Concat <axis = -1> (minus, left)  a = Mul(x, cos)  b = Mul(turned, sin)  "
        "r = Add(a, b)  y = Concat <axis = -1> (r, x) }",
        ["Cos", "Concat", "Unsqueeze", "Sin", "Concat", "Unsqueeze", "RotaryEmbedding", "Concat"],
        23,
    ),
    "a rotation of a part of each head": (
        "fuse-rotary-embedding",
        "(float[2, 2, 3, 10] x, float[2, 3, 4] angle) => (float[2, 2, 3, 10] y) <int64[1] zero = {0}, "
        "int64[1] half = {4}, int64[1] end = {8}, int64[1] all = {10}, int64[1] last = {3}, int64[1] one = {1}> {"
        + ANGLES
        + "p = Slice(x, zero, end, last)  left = Slice(p, zero, half, last)  right = Slice(p, half, end, last)  "
        "minus = Neg(right)  turned = Concat <axis = -1> (minus, left)  a = Mul(p, cos)  b = Mul(turned, sin)  "
        "r = Add(a, b)  rest = Slice(x, end, all, last)  y = Concat <axis = -1> (r, rest) }",
        ["Cos", "Concat", "Unsqueeze", "Sin", "Concat", "Unsqueeze", "RotaryEmbedding"],
        23,
    ),
    "columns of a table": (
        "fold-repeated-gather",
        "(float[3, 3] x) => (float[3, 3] y) <float[3, 3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[1] one = {1}, "
        "int64[1] to = {3}> { i = Expand(one, to)  r = Gather <axis = 1> (table, i)  y = Add(x, r) }",
        ["Expand", "Gather", "Add"],
    ),
    "guarded weights that are read elsewhere": (
        "fuse-attention",
        f"({QKV}) => (float[2, 2, 5, 4] y, float[2, 2, 5, 3] z) <float zero = {{0}}> {{ {PRODUCT}"
        "p = Softmax <axis = -1> (s)  n = IsNaN(p)  g = Where(n, zero, p)  y = MatMul(g, v)  z = Neg(p) }",
        ["Transpose", "MatMul", "Softmax", "IsNaN", "Where", "MatMul", "Neg"],
        23,
    ),
    "scores or other numbers": (
        "fuse-attention",
        f"({QKV}, bool[5, 3] c, float[5, 3] m) => (float[2, 2, 5, 4] y) {{ {PRODUCT}"
        "w = Where(c, s, m)  p = Softmax <axis = -1> (w)  y = MatMul(p, v) }",
        ["Transpose", "MatMul", "Where", "Softmax", "MatMul"],
        23,
    ),
    "a clipped mask": (
        "fuse-attention",
        f"({QKV}, float[2, 1, 5, 3] m) => (float[2, 2, 5, 4] y) <float low = {{-1}}, float high = {{1}}> {{ {PRODUCT}"
        "c = Clip(m, low, high)  a = Add(s, c)  p = Softmax <axis = -1> (a)  y = MatMul(p, v) }",
        ["Clip", "Mul", "Attention"],
        23,
    ),
    "bounds of integers": (
        "merge-clips",
        "(int64[N] x) => (int64[N] y) <int64 a = {-1}, int64 b = {5}, int64 c = {0}, int64 d = {9}> "
        "{ p = Clip(x, a, b)  y = Clip(p, c, d) }",
        ["Clip", "Clip"],
    ),
    "indices that count from the end": (
        "eliminate-full-gather",
        "(float[2, 3] x) => (float[6] y) <int64 low = {-3}, int64 high = {3}, int64 one = {1}, int64[1] axis = {1}, "
        "int64[2] to = {6, 1}, int64[1] first = {1}> { r = Range(low, high, one)  c = Unsqueeze(r, axis)  "
        "e = Expand(first, to)  i = Concat <axis = -1> (e, c)  y = GatherND(x, i) }",
        ["Range", "Unsqueeze", "Expand", "Concat", "GatherND"],
    ),
    "pairs of indices that are single ones": (
        "eliminate-full-gather",
        "(float[2, S] x) => (float[2, 2, 2, S] y) <int64 zero = {0}, int64 one = {1}, int64 two = {2}, "
        "int64[1] last = {2}, int64[1] front = {0}, int64[1] behind = {1}, int64[1] end = {-1}> "
        "{ s = Shape(x)  b = Gather(s, zero)  rows = Range(zero, b, one)  columns = Range(zero, two, one)  "
        "r = Unsqueeze(rows, behind)  c = Unsqueeze(columns, front)  u = Unsqueeze(r, end)  v = Unsqueeze(c, end)  "
        "k = Shape(u)  t = Shape(v)  g = Max(k, t)  p = Expand(u, g)  q = Expand(v, g)  "
        "i = Concat <axis = -1> (p, q)  y = Gather(x, i) }",
        [
            "Shape",
            "Gather",
            "Range",
            "Range",
            "Unsqueeze",
            "Unsqueeze",
            "Unsqueeze",
            "Unsqueeze",
            "Shape",
            "Shape",
            "Max",
            "Expand",
            "Expand",
            "Concat",
            "Gather",
        ],
    ),
    "an Identity of an old operator set": (
        "eliminate-identity",
        "(float[N] x) => (float[N] y) { a = Exp(x)  b = Identity(a)  y = Neg(b) }",
        ["Exp", "Neg"],
        6,
    ),
    "a view that joins pieces of two axes": (
        "merge-rearrangements",
        "(float[2, 3] x) => (float[3, 2] y) <int64[2] to = {2, 3}> "
        "{ a = Transpose(x)  b = Reshape(a, to)  y = Transpose(b) }",
        ["Transpose", "Reshape", "Transpose"],
    ),
    "a view that fixes a dynamic size": (
        "merge-rearrangements",
        "(float[Four, 2, 3] x) => (float[4, 2, 3] y) <int64[3] to = {4, 3, 2}> "
        "{ a = Transpose <perm = [0, 2, 1]> (x)  b = Reshape(a, to)  y = Transpose <perm = [0, 2, 1]> (b) }",
        ["Transpose", "Reshape", "Transpose"],
    ),
    "a constant for the rows of a view": (
        "eliminate-layout-roundtrips",
        "(float[6] x) => (float[6] y) <int64[2] to = {2, 3}, float[3] w = {1, 2, 3}, int64[1] back = {6}> "
        "{ a = Reshape(x, to)  b = Add(a, w)  y = Reshape(b, back) }",
        ["Reshape", "Add", "Reshape"],
    ),
    "parts of a value of unknown rank": (
        "eliminate-split-concat",
        "(float[N] x, int64[K] to) => (float[M] y) <int64[1] all = {-1}> { r = Reshape(x, to)  "
        "a, b = Split <axis = 0, num_outputs = 2> (r)  c = Concat <axis = 0> (a, b)  y = Reshape(c, all) }",
        ["Reshape", "Split", "Concat", "Reshape"],
        18,
    ),
    "a scale for each row": (
        "fuse-layer-norm",
        f"(float[2, 4] x) => (float[2, 4] y) <{EPS}, float[2, 4] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> "
        f"{{ {NORM.format(axes='-1')}  y = Mul(n, w) }}",
        ["LayerNormalization", "Mul"],
    ),
    "an offset out of the range of its type": (
        "fuse-hard-sigmoid",
        "(float[N] x) => (float[N] y) <float far = {3e38}, float zero = {0}, float high = {0.1}, float by = {10}> "
        "{ a = Add(x, far)  b = Clip(a, zero, high)  y = Mul(b, by) }",
        ["Add", "Clip", "Mul"],
    ),
    "a norm of a sum in half precision": (
        "fuse-skip-layer-norm",
        "(float16[2, 3, 4] x, float16[2, 3, 4] z, float16[4] w) => (float16[2, 3, 4] y) "
        "{ a = Add(x, z)  y = LayerNormalization(a, w) }",
        ["Add", "LayerNormalization"],
    ),
    "values of unknown shape": (
        "fuse-attention",
        "(float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[N] v, int64[K] to) => (float[A, B, C, D] y) "
        "{ t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul(q, t)  p = Softmax <axis = -1> (s)  r = Reshape(v, to)  "
        "y = MatMul(p, r) }",
        ["Transpose", "MatMul", "Softmax", "Reshape", "MatMul"],
        23,
    ),
    "a mask that is an input": (
        "fuse-packed-attention",
        "(float[1, 3, 2] x, float[1, 1, 3, 3] m) => (float[1, 3, 2] y) <float[2, 2] w = {1, 2, 3, 4}, "
        "float[2, 2] v = {5, 6, 7, 8}, float[2, 2] u = {9, 1, 2, 3}> { q = MatMul(x, w)  k = MatMul(x, v)  "
        "l = MatMul(x, u)  y = Attention <q_num_heads = 1, kv_num_heads = 1> (q, k, l, m) }",
        ["MatMul", "MatMul", "MatMul", "Attention"],
        23,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_near_misses_compute_the_same(case: str) -> None:
    name, graph, expected, *opset = CASES[case]
    text = graph_text(f"agraph {graph}", *opset or [17])
    after, _ = run_passes(text, [PASSES[name]], target=target_of(PASSES[name]))
    assert op_types(after) == expected
    if not any(text in graph.split("=>")[0] for text in ("to)", "Four")):  # which fit no random target or size
        assert_same(text, after, exact=False)


def test_a_sequence_that_is_an_output_stays() -> None:
    text = (
        "agraph (float[4, 6] x) => (float[4, 2] y, seq(float[4, 2]) s) <int64 two = {2}, int64 one = {1}> "
        "{ s = SplitToSequence <axis = -1> (x, two)  y = SequenceAt(s, one) }"
    )
    log = run(PASSES["eliminate-split-to-sequence"], read(graph_text(text, 17)))
    assert not log.events
    assert "its parts are read as a sequence" in reasons(log)


def test_clips_with_bounds_as_attributes_are_merged() -> None:
    text = graph_text(
        "agraph (float[N] x) => (float[N] y)"
        " { a = Clip <min = -1.0, max = 5.0> (x)  y = Clip <min = 0.0, max = 6.0> (a) }",
        10,
    )
    after, _ = run_passes(text, [PASSES["merge-clips"]])
    assert [len(node.inputs) for node in after.graph] == [1]
    assert_same(text, after)


@pytest.mark.parametrize("result", [np.zeros(2), np.zeros(3, np.float32)])
def test_what_an_engine_computes_of_another_type_or_shape_is_not_folded(result: np.ndarray) -> None:
    text = graph_text("agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Exp(w)  y = Add(x, a) }")
    after, _ = run_passes(text, [PASSES["fold-constants"]], evaluate=lambda _: [result])
    assert op_types(after) == ["Exp", "Add"]


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_scale_that_is_not_finite_stays_before_the_rotation(number: float) -> None:
    """The rotation subtracts two infinities, which is not the same as a product with one."""
    one = PASSES["sink-rotary-scale"]
    proto = onnx.parser.parse_model(one.example.before)
    proto.graph.initializer[0].CopyFrom(onnx.helper.make_tensor("by", onnx.TensorProto.FLOAT, [], [number]))
    assert not run(one, read(onnx.printer.to_text(proto))).events


@pytest.mark.parametrize(
    "reader",
    ["com.microsoft.QuickGelu(b)", "If(yes) <then_branch = t () => (float[N, 4] p) { p = Reciprocal(b) }, "
     "else_branch = f () => (float[N, 4] q) { q = Identity(b) }>"],
)  # fmt: skip
def test_operators_of_other_domains_and_bodies_may_show_the_sign_of_a_zero(reader: str) -> None:
    graph = (
        f"agraph (float[N, 4] x, bool yes) => (float[N, 4] y) <float zero = {{0}}> {{ b = Add(x, zero)  y = {reader} }}"
    )
    text = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>\n' + graph
    after, _ = run_passes(text, [PASSES["eliminate-add-zero"]])
    assert op_types(after)[0] == "Add"


def test_one_empty_operand_of_three_goes() -> None:
    _, graph, *_ = CASES["several of its operands are not empty"]
    after, _ = run_passes(graph_text(f"agraph {graph}", 17), [PASSES["eliminate-empty-operands"]])
    assert [[value.name for value in node.inputs if value] for node in after.graph] == [["x", "z"]]
