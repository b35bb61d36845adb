"""Every form of scaled dot-product attention becomes one Attention; similar patterns stay."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from passes.util import DIMS, assert_same, compare, draw, graph_text, op_types, outputs, parse, reasons, run_passes
from sardonyx.ir.rules import Rule
from sardonyx.passes._mask_values import shrinking
from sardonyx.passes.attention.fuse_attention import FuseAttention
from sardonyx.passes.cleanup.share_constants import ShareConstants
from sardonyx.passes.cleanup.share_subexpressions import ShareSubexpressions

SIZED = "float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v"
NAMED = "float[B, 2, S, 4] q, float[B, 2, T, 4] k, float[B, 2, T, 4] v"
KT = "kt = Transpose <perm = [0, 1, 3, 2]> (k)"


def attention(
    body: str,
    *,
    inputs: str = SIZED,
    mask: str = "",
    result: str = "float[2, 2, 5, 4] y",
    constants: str = "",
    opset: int = 23,
) -> str:
    """A graph with the usual inputs."""
    given = f"<{constants}>" if constants else ""
    return graph_text(f"agraph ({', '.join(filter(None, (inputs, mask)))}) => ({result}) {given} {{ {body} }}", opset)


class Fused(NamedTuple):
    """The operators of a fused model, and the attributes of its Attention."""

    ops: list[str]
    attributes: dict[str, object]


def fused(model: str | onnx.ModelProto, *more: Rule, rtol: float = 1e-5) -> Fused:
    """Fuse and compare."""
    after, log = run_passes(model, [FuseAttention(), *more])
    assert [kind for kind in op_types(after) if kind in ("Attention", "Softmax")] == ["Attention"], reasons(log)
    assert_same(model, after, exact=False, rtol=rtol)
    node = next(node for node in after.graph if node.op_type == "Attention")
    return Fused(op_types(after), {name: attribute.value for name, attribute in node.attributes.items()})


def refused(model: str) -> str:
    """The reason why it is not fused."""
    before = op_types(run_passes(model, [])[0])
    after, log = run_passes(model, [FuseAttention()])
    assert op_types(after) == before
    return " | ".join(reasons(log))


SCALES = {
    "none": ("q", "kt", "s", 1.0),
    "mul after": ("q", "kt", "Mul(s, c)", 0.3),
    "mul after, constant first": ("q", "kt", "Mul(c, s)", 0.3),
    "div after": ("q", "kt", "Div(s, c)", 1 / 0.3),
    "on q": ("Mul(q, c)", "kt", "s", 0.3),
    "on k": ("q", "Mul(c, kt)", "s", 0.3),
    "div on q": ("Div(q, c)", "kt", "s", 1 / 0.3),
    "split": ("Mul(q, c)", "Mul(kt, c)", "s", 0.09),
    "thrice": ("Mul(q, c)", "Div(kt, c)", "Mul(s, c)", 0.3),
}


@pytest.mark.parametrize("rank", ["", "[1]", "[1, 1, 1]"])
@pytest.mark.parametrize("where", SCALES)
def test_scales_at_any_place(where: str, rank: str) -> None:
    first, second, after, scale = SCALES[where]
    steps = [KT, f"qs = Identity({first})" if first == "q" else f"qs = {first}"]
    steps += [f"ks = {second}" if second != "kt" else "ks = Identity(kt)", "s = MatMul(qs, ks)"]
    steps += [f"a = {after}" if after != "s" else "a = Identity(s)", "p = Softmax <axis = 3> (a)", "y = MatMul(p, v)"]
    text = "  ".join(steps)
    for name, value in (("qs", first), ("ks", second), ("a", after)):
        if value in ("q", "kt", "s"):
            text = (
                text.replace(f"{name} = Identity({value})", "")
                .replace(f"({name}", f"({value}")
                .replace(f", {name})", f", {value})")
            )
    result = fused(attention(text, constants=f"float{rank} c = {{0.3}}"))
    assert result.attributes.get("scale", 0.5) == pytest.approx(scale, rel=1e-6)
    assert result.ops == ["Attention"]


def test_the_default_scale_is_not_written() -> None:
    body = f"{KT}  s = MatMul(q, kt)  a = Div(s, c)  p = Softmax(a)  y = MatMul(p, v)"
    assert "scale" not in fused(attention(body, constants="float c = {2.0}")).attributes


def test_a_softcap() -> None:
    body = f"""{KT}  s = MatMul(q, kt)  a = Mul(s, c)
        d = Div(a, t)  e = Tanh(d)  f = Mul(t, e)  p = Softmax(f)  y = MatMul(p, v)"""
    result = fused(attention(body, constants="float c = {0.7}, float t = {1.5}"))
    assert result.attributes["softcap"] == pytest.approx(1.5)
    assert result.attributes["scale"] == pytest.approx(0.7)


MASKS = {
    "[5, 3]": 0, "[1, 5, 3]": 0, "[2, 5, 3]": 0, "[1, 1, 5, 3]": 0, "[2, 1, 5, 3]": 0, "[1, 2, 5, 3]": 0,
    "[2, 2, 5, 3]": 0, "[2, 1, 1, 3]": 1, "[1, 3]": 1, "[3]": 1, "[1, 1, 1, 3]": 1,
}  # fmt: skip


@pytest.mark.parametrize("order", ["Add(s, m)", "Add(m, s)"])
@pytest.mark.parametrize("shape", MASKS)
def test_added_masks_of_every_shape(shape: str, order: str) -> None:
    body = f"{KT}  s = MatMul(q, kt)  a = {order}  p = Softmax(a)  y = MatMul(p, v)"
    result = fused(attention(body, mask=f"float{shape} m"))
    assert result.ops == ["Mul"] + ["Expand"] * MASKS[shape] + ["Attention"]


@pytest.mark.parametrize("fill", [float(np.finfo(np.float32).min), -1e9])
def test_fully_masked_rows_stay_the_mean_of_the_values(fill: float) -> None:
    """The runtime's kernel returns zeros for a row of the lowest number; the result must not show that."""
    body = f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
    model = attention(body, mask="float[2, 1, 5, 3] m")
    after, _ = run_passes(model, [FuseAttention()])
    feeds = draw(parse(model), 1, DIMS[0])
    feeds["m"][:] = 0
    feeds["m"][0, 0, 1] = fill
    feeds["m"][1, 0, 2, 1:] = fill
    assert_same(model, after, exact=False, rtol=1e-5 if fill < -1e30 else 1e-4, feeds=feeds)


@pytest.mark.parametrize("fill", ["-3.4028234663852886e38", "-1.0e9"])
def test_a_where_between_constants_needs_no_bound(fill: str) -> None:
    body = f"""{KT}  m = Where(c, zero, low)
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"""
    proto = parse(attention(body, mask="bool[2, 1, 5, 3] c", constants="float zero = {0}, float low = {1}"))
    proto.graph.initializer[1].CopyFrom(helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [float(fill)]))
    after, _ = run_passes(proto, [FuseAttention()])
    assert op_types(after) == ["Where", "Attention"]
    feeds = draw(proto, 3, DIMS[0])
    feeds["c"][0, 0, 0] = False
    assert_same(proto, after, exact=False, rtol=1e-4 if fill == "-1.0e9" else 1e-5, feeds=feeds)


def test_a_view_of_a_where_between_constants_needs_no_bound() -> None:
    body = f"""{KT}  w = Where(c, zero, low)  u = Unsqueeze(w, one)  m = Expand(u, rows)
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"""
    given = "float zero = {0}, float low = {1}, int64[1] one = {1}, int64[4] rows = {1, 1, 5, 1}"
    proto = parse(attention(body, mask="bool[2, 1, 3] c", constants=given))
    lowest = float(np.finfo(np.float32).min)
    proto.graph.initializer[1].CopyFrom(helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [lowest]))
    after, _ = run_passes(proto, [FuseAttention()])
    assert op_types(after) == ["Where", "Unsqueeze", "Expand", "Attention"]
    feeds = draw(proto, 3, DIMS[0])
    feeds["c"][0] = False
    assert_same(proto, after, exact=False, feeds=feeds)


def test_gathered_constant_biases_need_no_bound() -> None:
    body = f"""{KT}  g = Gather <axis = 0> (table, i)  m = Transpose <perm = [2, 0, 1]> (g)
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"""
    model = attention(body, mask="int64[5, 3] i", constants="float[8, 2] table = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}")
    after, _ = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Gather", "Transpose", "Attention"]


def test_two_masks_are_added_and_the_sum_is_shared() -> None:
    body = f"""{KT}
        s = MatMul(q, kt)  a = Add(s, m)  b = Add(n, a)  p = Softmax(b)  w = MatMul(p, v)
        t = MatMul(w, kt)  c = Add(t, m)  d = Add(c, n)  r = Softmax(d)  y = MatMul(r, v)"""
    model = attention(body, mask="float[1, 2, 5, 3] m, float[2, 1, 1, 3] n")
    after, _ = run_passes(model, [FuseAttention(), ShareConstants(), ShareSubexpressions()])
    assert op_types(after) == ["Add", "Mul", "Attention", "Attention"]
    assert_same(model, after, exact=False)


def test_a_constant_mask_of_zeros_is_dropped() -> None:
    body = f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
    assert fused(attention(body, constants="float[1, 1, 1, 3] m = {0, 0, 0}")).ops == ["Attention"]


def test_a_mask_added_in_a_view_of_windows() -> None:
    body = f"""{KT}
        s = MatMul(q, kt)  five = Reshape(s, windows)  a = Add(five, m)  four = Reshape(a, whole)
        p = Softmax(four)  y = MatMul(p, v)"""
    shapes = "int64[5] windows = {1, 2, 2, 5, 3}, int64[4] whole = {-1, 2, 5, 3}"
    result = fused(attention(body, mask="float[1, 2, 1, 5, 3] m", constants=shapes))
    assert result.ops == ["Reshape", "Mul", "Attention"]


def test_a_mask_that_repeats_along_the_batch_is_refused() -> None:
    body = f"""{KT}
        s = MatMul(q, kt)  five = Reshape(s, windows)  a = Add(five, m)  four = Reshape(a, whole)
        p = Softmax(four)  y = MatMul(p, v)"""
    inputs = "float[4, 2, 5, 4] q, float[4, 2, 3, 4] k, float[4, 2, 3, 4] v"
    shapes = "int64[5] windows = {2, 2, 2, 5, 3}, int64[4] whole = {-1, 2, 5, 3}"
    model = attention(
        body, inputs=inputs, mask="float[1, 2, 1, 5, 3] m", result="float[4, 2, 5, 4] y", constants=shapes
    )
    assert "only a part of an axis" in refused(model)


@pytest.mark.parametrize("fill", ["-inf", "-3.4028234663852886e38"])
@pytest.mark.parametrize("keeps", [True, False])
def test_conditions(keeps: bool, fill: str) -> None:
    """Fully masked rows are left out: with -inf they are NaN, and zeros in Attention."""
    choice = "Where(m, s, f)" if keeps else "Where(m, f, s)"
    body = f"{KT}  s = MatMul(q, kt)  a = {choice}  p = Softmax(a)  y = MatMul(p, v)"
    proto = parse(attention(body, mask="bool[2, 1, 5, 3] m", constants="float f = {1}"))
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("f", onnx.TensorProto.FLOAT, [], [float(fill)]))
    after, log = run_passes(proto, [FuseAttention()])
    assert "Attention" in op_types(after), reasons(log)
    feeds = draw(proto, 3, DIMS[0])
    if fill == "-inf":
        feeds["m"][..., 0] = keeps
        assert op_types(after) == (["Attention"] if keeps else ["Not", "Attention"])
    else:
        feeds["m"][0, 0, 0] = not keeps  # fully masked: the mean of the values
    assert_same(proto, after, exact=False, feeds=feeds)


def test_a_condition_and_a_mask() -> None:
    body = f"{KT}  s = MatMul(q, kt)  a = Where(c, s, f)  b = Add(a, m)  p = Softmax(b)  y = MatMul(p, v)"
    model = attention(body, mask="bool[5, 3] c, float[2, 1, 5, 3] m", constants="float f = {-3.0e38}")
    assert fused(model).ops == ["Where", "Add", "Mul", "Attention"]


def test_a_guard_against_nan_is_removed() -> None:
    body = f"""{KT}
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  n = IsNaN(p)  g = Where(n, z, p)  y = MatMul(g, v)"""
    model = attention(body, mask="float[2, 1, 5, 3] m", constants="float z = {0}")
    after, log = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Mul", "Attention"], reasons(log)
    feeds = draw(parse(model), 1, DIMS[0])
    feeds["m"][0, 0, 1] = -np.inf
    feeds["m"][0, 0, 2] = np.finfo(np.float32).min
    assert_same(model, after, exact=False, feeds=feeds)


def test_a_guard_after_the_cast_back_is_removed() -> None:
    inputs = SIZED.replace("float[", "float16[").replace("4] v", "8] v")
    body = f"""{KT}  s = MatMul(q, kt)  f = Cast <to = 1> (s)  p = Softmax(f)  h = Cast <to = 10> (p)
        n = IsNaN(h)  g = Where(n, z, h)  y = MatMul(g, v)"""
    model = attention(body, inputs=inputs, result="float16[2, 2, 5, 8] y", constants="float16 z = {0}")
    after, log = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Attention"], reasons(log)
    assert_same(model, after, exact=False, rtol=1e-2)


def test_values_that_are_the_weights_stay() -> None:
    inputs = SIZED.replace("3, 4]", "5, 4]")
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, p)"
    assert refused(attention(body, inputs=inputs, result="float[2, 2, 5, 5] y")) == "its weights are read elsewhere"


def test_a_guard_that_adds_an_axis_stays() -> None:
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  n = IsNaN(p)  g = Where(n, z, p)  y = MatMul(g, v)"
    text = attention(body, result="float[1, 2, 2, 5, 4] y", constants="float[1, 1, 1, 1, 1] z = {0}")
    after, _ = run_passes(text, [FuseAttention()])
    assert "Softmax" in op_types(after)


LOWEST = float(np.finfo(np.float32).min)
ABOVE = float(np.nextafter(np.float32(LOWEST), np.float32(0)))
TWICE = {
    "sums": "a = Add(s, m)  b = Add(a, n)",
    "a choice over a sum": "c = Less(n, z)  a = Add(s, m)  b = Where(c, f, a)",
    "a sum over a choice": "c = Less(n, z)  a = Where(c, f, s)  b = Add(a, m)",
    "choices": "c = Less(n, z)  d = Less(m, z)  a = Where(d, f, s)  b = Where(c, g, a)",
    "a choice between fills": "c = Less(n, z)  w = Where(c, f, g)  a = Add(s, w)  b = Add(m, a)",
    "a mask of a choice": "c = Less(n, z)  w = Where(c, f, m)  b = Add(s, w)",
}


@pytest.mark.parametrize("fills", [(LOWEST, LOWEST), (LOWEST, ABOVE), (LOWEST, -3.4e38), (-np.inf, LOWEST)])
@pytest.mark.parametrize("twice", TWICE)
def test_masks_keep_their_order(twice: str, fills: tuple[float, float]) -> None:
    """Every pattern of two masks on three keys, -inf and the lowest number mixed, in one run."""
    body = f"{KT}  s = MatMul(q, kt)  {TWICE[twice]}  p = Softmax(b)  y = MatMul(p, v)"
    inputs = "float[1, 1, 64, 4] q, float[1, 1, 3, 4] k, float[1, 1, 3, 4] v"
    numbers = "float z = {0}, float f = {1}, float g = {1}"
    model = parse(attention(body, inputs=inputs, mask="float[64, 3] m, float[64, 3] n", result="float[1, 1, 64, 4] y",
                            constants=numbers))  # fmt: skip
    for tensor, number in zip(model.graph.initializer[1:], fills, strict=True):
        tensor.CopyFrom(helper.make_tensor(tensor.name, onnx.TensorProto.FLOAT, [], [number]))
    after, log = run_passes(model, [FuseAttention()])
    assert "Attention" in op_types(after), reasons(log)
    patterns = (np.arange(64)[:, None] >> np.arange(6)) & 1
    feeds = dict(draw(model, 5, {}))
    feeds["m"], feeds["n"] = (np.where(patterns[:, part], fill, 0).astype(np.float32)
                              for part, fill in zip((np.s_[:3], np.s_[3:]), fills, strict=True))  # fmt: skip
    wanted, got = (outputs(each, feeds)[0] for each in (model, _proto(after)))
    freed = np.isnan(wanted) & (got == 0)  # fully masked by -inf
    compare("y", np.where(freed, 0, wanted), got, exact=False)


def test_only_the_lowest_number_of_a_mask_is_changed() -> None:
    """The product with the largest number below one is the next number towards zero."""
    numbers = np.array([LOWEST, ABOVE, -3.4e38, -1e9, -1e4, -1.0, -1e-30, 2.5, 3e38], np.float32)
    shrunk = numbers * shrinking(ir.DataType.FLOAT)
    np.testing.assert_array_equal(shrunk, np.nextafter(numbers, np.float32(0)))
    special = np.array([-np.inf, np.inf, 0.0, -0.0, np.nan], np.float32)
    np.testing.assert_array_equal(special * shrinking(ir.DataType.FLOAT), special)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_where_between_constants_of_more_axes_keeps_its_shape(rank: int) -> None:
    perm = [*range(rank - 2), rank - 1, rank - 2]
    body = f"""{KT}  w = Where(c, zero, low)  m = Transpose <perm = {perm}> (w)
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"""
    ones = ", ".join(["1"] * rank)
    given = f"float[{ones}] zero = {{0}}, float low = {{1}}"
    model = parse(attention(body, mask="bool[3, 5] c", constants=given))
    model.graph.initializer[1].CopyFrom(helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [LOWEST]))
    assert fused(model).ops == ["Where", "Transpose", "Attention"]


@pytest.mark.parametrize("fill", [-1e5, -1e7])
def test_sums_that_would_be_rounded_differently_stay(fill: float) -> None:
    body = (
        f"{KT}  w = Where(c, z, f)  s = MatMul(q, kt)  a = Add(s, m)  b = Add(a, w)  p = Softmax(b)  y = MatMul(p, v)"
    )
    model = attention(body, mask="float[5, 3] m, bool[5, 3] c", constants=f"float z = {{0}}, float f = {{{fill}}}")
    assert "added in another order" in refused(model)
    alone = body.replace("a = Add(s, m)  b = Add(a, w)", "b = Add(s, w)")
    fused(attention(alone, mask="bool[5, 3] c", constants=f"float z = {{0}}, float f = {{{fill}}}"), rtol=1e-3)


@pytest.mark.parametrize("scaled", ["Mul(v, c)", "Mul(c, v)", "Div(v, c)"])
def test_a_scale_of_the_values_stays(scaled: str) -> None:
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  u = {scaled}  y = MatMul(p, u)"
    result = fused(attention(body, constants="float c = {2.0}"))
    assert result.ops == [scaled[:3], "Attention"]
    assert result.attributes["scale"] == pytest.approx(1.0)


def test_half_precision_keeps_the_scale_before_a_product_that_would_overflow() -> None:
    inputs = "float16[1, 1, 4, 8] q, float16[1, 1, 4, 8] k, float16[1, 1, 4, 8] v"
    body = f"{KT}  a = Mul(q, c)  s = MatMul(a, kt)  p = Softmax(s)  y = MatMul(p, v)"
    model = attention(body, inputs=inputs, result="float16[1, 1, 4, 8] y", constants="float16 c = {9216}")
    after, _ = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Mul", "Attention"]
    feeds = dict(draw(parse(model), 0, {}))
    feeds["q"] = np.full_like(feeds["q"], 100)
    feeds["k"] = np.full_like(feeds["k"], 100)
    wanted, got = (outputs(each, feeds)[0].astype(np.float32) for each in (parse(model), _proto(after)))
    compare("y", wanted, got, exact=False, rtol=2e-3)


@pytest.mark.parametrize("types", [(6,), (9,), (10,), (11, 6), (11, 1, 10)])
def test_weights_that_are_cast_to_a_narrower_type_stay(types: tuple[int, ...]) -> None:
    """Through int32, bool and half precision; a cast to double and back is merged elsewhere."""
    names = ["p", *(f"p{index}" for index in range(len(types)))]
    casts = "  ".join(
        f"{two} = Cast <to = {to}> ({one})" for one, two, to in zip(names, names[1:], types, strict=False)
    )
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  {casts}  w = Cast <to = 1> ({names[-1]})  y = MatMul(w, v)"
    assert "a type that does not hold them" in refused(attention(body))


HALF = {
    "no mask": ("", "s", True),
    "-inf": ("bool[5, 3] c", "Where(c, s, inf)", True),
    "a chosen -inf": ("bool[5, 3] c", "Add(s, winf)", True),
    "a given mask": ("float16[5, 3] m", "Add(s, m)", False),
    "a chosen lowest": ("bool[5, 3] c", "Add(s, wlow)", False),
    "a constant that shows a key": ("", "Add(s, some)", True),
    "a constant that hides a row": ("", "Add(s, none)", False),
    "a bias": ("int64[5, 3] i", "Add(s, bias)", True),
}


@pytest.mark.parametrize("case", HALF)
def test_half_precision_fuses_where_no_finite_mask_hides_a_row(case: str) -> None:
    mask, masked, fuses = HALF[case]
    producers = {
        "winf": "winf = Where(c, z, inf)",
        "wlow": "wlow = Where(c, z, low)",
        "bias": "bias = Gather(table, i)",
    }
    made = next((producer for name, producer in producers.items() if name in masked), "")
    masked = "Identity(s)" if masked == "s" else masked
    body = f"{KT}  {made}  s = MatMul(q, kt)  a = {masked}  p = Softmax(a)  y = MatMul(p, v)"
    if case == "no mask":
        body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, v)"
    inputs = SIZED.replace("float[", "float16[").replace("4] v", "8] v")
    model = onnx.parser.parse_model(attention(body, inputs=inputs, mask=mask, result="float16[2, 2, 5, 8] y"))
    hides = np.zeros((5, 3), np.float16)
    hides[1:, 1:] = -65504
    constants = {"z": 0, "inf": -np.inf, "low": -65504, "some": hides, "none": np.minimum(hides, hides[:, 1:2])}
    constants["table"] = np.linspace(-3, 3, 7)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float16), name)
        for name, array in constants.items()
        if name in used
    )
    after, log = run_passes(model, [FuseAttention()])
    assert ("Attention" in op_types(after)) == fuses, reasons(log)
    assert fuses or "in half precision" in " ".join(reasons(log))


@pytest.mark.parametrize(("width", "fuses"), [(4, False), (12, False), (8, True), (64, True), (6, True), ("W", False)])
def test_half_precision_of_widths_that_the_kernel_gets_wrong(width: int | str, fuses: bool) -> None:
    """On processors with half-precision products it writes columns of zeros."""
    inputs = SIZED.replace("float[", "float16[").replace("4] v", f"{width}] v")
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, v)"
    after, _ = run_passes(attention(body, inputs=inputs, result=f"float16[2, 2, 5, {width}] y"), [FuseAttention()])
    assert ("Attention" in op_types(after)) == fuses


GROUPED = "float[B, 6, S, 4] q, float[B, 2, T, 4] k, float[B, 2, T, 4] v"


def grouped(repeat: str) -> str:
    """Two heads of keys and values, each for three heads of queries."""
    return f"""
        ku = Unsqueeze(k, two)  ke = {repeat.format("ku")}  kr = Reshape(ke, six)
        vu = Unsqueeze(v, two)  ve = {repeat.format("vu")}  vr = Reshape(ve, six)
        kt = Transpose <perm = [0, 1, 3, 2]> (kr)  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, vr)"""


def test_repeated_heads_are_read_once() -> None:
    constants = "int64[1] two = {2}, int64[5] three = {1, 1, 3, 1, 1}, int64[4] six = {0, 6, -1, 4}"
    body = grouped("Expand({}, three)")
    inputs = GROUPED.replace("B", "2").replace("S", "5").replace("T", "3")
    result = fused(attention(body, inputs=inputs, constants=constants, result="float[2, 6, 5, 4] y"))
    assert result.ops == ["Attention"]


def test_heads_repeated_in_another_order_stay() -> None:
    """k0 k1 k0 k1: no group of queries reads a single head, so the copy must stay."""
    body = """
        ku = Unsqueeze(k, one)  ke = Expand(ku, three)  kr = Reshape(ke, six)
        vu = Unsqueeze(v, one)  ve = Expand(vu, three)  vr = Reshape(ve, six)
        kt = Transpose <perm = [0, 1, 3, 2]> (kr)  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, vr)"""
    constants = "int64[1] one = {1}, int64[5] three = {1, 3, 1, 1, 1}, int64[4] six = {0, 6, -1, 4}"
    inputs = GROUPED.replace("B", "2").replace("S", "5").replace("T", "3")
    result = fused(attention(body, inputs=inputs, constants=constants, result="float[2, 6, 5, 4] y"))
    assert result.ops.count("Expand") == 2


def test_one_head_of_keys_for_all_queries() -> None:
    inputs = "float[2, 6, 5, 4] q, float[2, 1, 3, 4] k, float[2, 1, 3, 4] v"
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, v)"
    assert fused(attention(body, inputs=inputs, result="float[2, 6, 5, 4] y")).ops == ["Attention"]


def test_keys_transposed_directly_from_rows() -> None:
    inputs = "float[2, 5, 2, 4] x, float[2, 2, 3, 4] q"
    body = """kt = Transpose <perm = [0, 2, 3, 1]> (x)  v = Transpose <perm = [0, 2, 1, 3]> (x)
        s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, v)"""
    result = fused(attention(body, inputs=inputs, result="float[2, 2, 3, 4] y"))
    assert result.ops == ["Transpose", "Transpose", "Attention"]


def test_heads_in_the_batch() -> None:
    """[batch x heads, length, width], the form for products of three axes."""
    inputs = "float[2, 5, 8] x, float[1, 5, 5] m"
    body = """
        xr = Reshape(x, heads)  xt = Transpose <perm = [0, 2, 1, 3]> (xr)  q = Reshape(xt, flat)
        kt = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  w = MatMul(p, q)
        wr = Reshape(w, apart)  wt = Transpose <perm = [0, 2, 1, 3]> (wr)  y = Reshape(wt, rows)"""
    constants = """int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {4, 5, 4}, int64[4] apart = {2, 2, 5, 4},
        int64[3] rows = {0, 0, 8}"""
    result = fused(attention(body, inputs=inputs, constants=constants, result="float[2, 5, 8] y"))
    assert "q_num_heads" not in result.attributes


def test_one_head_of_three_axes() -> None:
    inputs = "float[B, S, 4] q, float[B, T, 4] k, float[B, T, 4] v, float[B, S, T] m"
    body = "kt = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
    text = attention(body, inputs=inputs, result="float[B, S, 4] y")
    after, log = run_passes(text, [FuseAttention()])
    assert op_types(after).count("Attention") == 1 or "target is not constant" in " ".join(reasons(log))
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("mask", ["float[B, 1, 1, S] m", "float[B, 1, S, S] m", "float[S] m", "float[1, 2, S, S] m"])
def test_named_dims(mask: str) -> None:
    inputs = NAMED.replace("T", "S")
    body = f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
    result = fused(attention(body, inputs=inputs, mask=mask, result="float[B, 2, S, 4] y"))
    spread = ["Shape", "Concat", "Expand"] if "S, S" not in mask else []
    assert result.ops == ["Mul", *spread, "Attention"]


def test_named_dims_of_other_lengths() -> None:
    body = f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
    model = attention(body, inputs=NAMED, mask="float[B, 1, 1, T] m", result="float[B, 2, S, 4] y")
    after, _ = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Mul", "Shape", "Concat", "Expand", "Attention"]
    feeds = draw(parse(model), 0, {"B": 3, "S": 2, "T": 7})
    assert_same(model, after, exact=False, feeds=feeds)


def test_half_precision_with_a_softmax_in_single() -> None:
    inputs = SIZED.replace("float[", "float16[").replace("4] v", "8] v")
    body = f"{KT}  s = MatMul(q, kt)  f = Cast <to = 1> (s)  p = Softmax(f)  h = Cast <to = 10> (p)  y = MatMul(h, v)"
    model = attention(body, inputs=inputs, result="float16[2, 2, 5, 8] y")
    after, log = run_passes(model, [FuseAttention()])
    assert op_types(after) == ["Attention"], reasons(log)
    feeds = draw(parse(model), 0, DIMS[0])
    wanted, got = (outputs(each, feeds)[0].astype(np.float32) for each in (parse(model), _proto(after)))
    compare("y", wanted, got, exact=False, rtol=2e-3)


def _proto(model: object) -> onnx.ModelProto:
    assert isinstance(model, ir.Model)
    return ir.to_proto(model)


@pytest.mark.parametrize("opset", [14, 18])
def test_older_files_are_raised(opset: int) -> None:
    body = f"{KT}  s = MatMul(q, kt)  p = Softmax <axis = -1> (s)  y = MatMul(p, v)"
    assert fused(attention(body, opset=opset)).ops == ["Attention"]


PLAIN = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(p, v)"
MASKED = f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  p = Softmax(a)  y = MatMul(p, v)"
WITH_MAXIMUM = f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  w = MatMul(p, v)"
NEAR_MISSES: dict[str, tuple[str, dict[str, Any]]] = {
    "scores are read elsewhere": (f"{WITH_MAXIMUM}  z = ReduceMax(s)  y = Add(w, z)", {}),
    "weights are read elsewhere": (f"{WITH_MAXIMUM}  z = ReduceMax(p)  y = Add(w, z)", {}),
    "scale is not a constant": (MASKED.replace("Add", "Mul"), {"mask": "float m"}),
    "scaled after the mask": (
        f"{KT}  s = MatMul(q, kt)  a = Add(s, m)  b = Mul(a, c)  p = Softmax(b)  y = MatMul(p, v)",
        {"mask": "float[5, 3] m", "constants": "float c = {0.5}"},
    ),
    "scale is not a positive number": (
        f"{KT}  s = MatMul(q, kt)  a = Mul(s, c)  p = Softmax(a)  y = MatMul(p, v)",
        {"constants": "float c = {-0.5}"},
    ),
    "keep some weight": (
        f"{KT}  s = MatMul(q, kt)  a = Where(m, s, c)  p = Softmax(a)  y = MatMul(p, v)",
        {"mask": "bool[5, 3] m", "constants": "float c = {-10000.0}"},
    ),
    "same for all keys": (MASKED, {"mask": "float[5, 1] m"}),
    "could enlarge the scores": (
        MASKED,
        {
            "inputs": "float[1, 2, 5, 4] q, float[1, 2, 3, 4] k, float[2, 2, 3, 4] v",
            "mask": "float[2, 1, 5, 3] m",
        },
    ),
    "different batch sizes": (
        PLAIN,
        {"inputs": "float[2, 2, 5, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v"},
    ),
    "no kernel": (
        PLAIN,
        {"inputs": SIZED.replace("float[", "double["), "result": "double[2, 2, 5, 4] y"},
    ),
    "groups of heads": (
        PLAIN,
        {"inputs": "float[2, 2, 5, 4] q, float[2, 1, 3, 4] k, float[2, 2, 3, 4] v"},
    ),
    "softcap differs": (
        f"{KT}  s = MatMul(q, kt)  t = Tanh(s)  a = Mul(t, c)  b = Mul(a, c)  p = Softmax(b)  y = MatMul(p, v)",
        {"constants": "float c = {3.0}"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", NEAR_MISSES)
def test_near_misses_have_reasons(reason: str) -> None:
    body, options = NEAR_MISSES[reason]
    assert reason in refused(attention(body, **options))


OTHER_PATTERNS = {
    "another axis": f"{KT}  s = MatMul(q, kt)  p = Softmax <axis = 2> (s)  y = MatMul(p, v)",
    "no values": f"{KT}  s = MatMul(q, kt)  y = Softmax(s)",
    "weights on the right": f"{KT}  s = MatMul(q, kt)  p = Softmax(s)  y = MatMul(u, p)",
    "no queries": "p = Softmax(u)  y = MatMul(p, v)",
}


@pytest.mark.parametrize("what", OTHER_PATTERNS)
def test_other_patterns_give_no_reasons(what: str) -> None:
    result = {"no values": "float[2, 2, 5, 3] y", "weights on the right": "float[2, 2, 5, 3] y"}
    mask = {"weights on the right": "float[2, 2, 5, 5] u", "no queries": "float[2, 2, 5, 3] u"}
    text = attention(OTHER_PATTERNS[what], mask=mask.get(what, ""), result=result.get(what, "float[2, 2, 5, 4] y"))
    assert refused(text) == ""
