"""Products over channels before a transpose to channels first become equivalent convolutions."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.products.fuse_pointwise_conv import FusePointwiseConv

PASSES = (FusePointwiseConv(),)
CONSTANTS = """<
    float[2, 3] w = {1, -2, 3, 4, 5, 6}, float[3, 2] v = {1, -2, 3, 4, 5, 6}, float[3] b = {7, 8, -9},
    float[2] c = {0.5, 1.5}, float[1, 3] row = {7, 8, -9}, float[2, 3] w2 = {1, -2, 3, 4, 5, 7},
    float[3, 4] wide = {1, -2, 3, 4, 5, 7, 1, 2, 3, 4, 5, 6}
>"""
LAST = "y = Transpose <perm = [0, 3, 1, 2]> (z)"


def left(body: str, opset: int = 18, kind: str = "[N, 4, 3, 2]") -> tuple[list[str], list[str]]:
    """The remaining operators and the reasons of refusals. The function must be unchanged."""
    text = graph_text(f"agraph (float{kind} x) => (float[A, B, C, D] y) {CONSTANTS} {{ {body}  {LAST} }}", opset)
    model, log = run_passes(text, PASSES)
    assert_same(text, model, exact=False)
    return op_types(model), reasons(log)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("a = MatMul(x, w)  z = Add(a, b)", ["Transpose", "Conv"]),
        ("a = MatMul(x, w)  z = Add(b, a)", ["Transpose", "Conv"]),
        ("a = MatMul(x, w)  d = Add(a, b)  z = Tanh(d)", ["Transpose", "Conv", "Tanh"]),
        (
            "a = MatMul(x, w)  d = Add(a, b)  e = Relu(d)  f = MatMul(e, v)  z = Add(c, f)",
            ["Transpose", "Conv", "Relu", "Conv"],
        ),
        ("a = MatMul(x, w)  e = Relu(a)  f = MatMul(e, v)  z = Add(c, f)", ["Transpose", "Conv", "Relu", "Conv"]),
        ("r = Relu(x)  a = MatMul(r, w)  z = Add(a, b)", ["Relu", "Transpose", "Conv"]),
    ],
)
@pytest.mark.parametrize("opset", [7, 18])
def test_products_become_convolutions(body: str, wanted: list[str], opset: int) -> None:
    assert left(body, opset)[0] == wanted


def test_the_transpose_stays_where_the_fewest_channels_are() -> None:
    narrow = "e = MatMul(x, wide)  f = Relu(e)  a = MatMul(f, back)  z = Add(a, c)"
    constants = CONSTANTS.replace(">", ", float[4, 2] back = {1, 2, 3, 4, 5, 6, 7, 8}>")
    text = graph_text(f"agraph (float[N, H, 3, 3] x) => (float[A, B, C, D] y) {constants} {{ {narrow}  {LAST} }}")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Relu", "MatMul", "Add", "Transpose"]
    assert "the result has fewer channels than the input" in reasons(log)


@pytest.mark.parametrize(
    "body",
    [
        "z = MatMul(x, w)",  # nothing would be saved
        "a = MatMul(x, w)  z = Add(a, row)",  # not one number per channel
        "a = MatMul(x, w)  d = Add(a, b)  z = Softmax <axis = -1> (d)",
        "a = MatMul(x, w)  d = Add(a, b)  z = Mul(a, d)",
        "a = MatMul(x, w)  d = Add(a, b)  e = MatMul(x, w)  z = Mul(d, e)",
    ],
)
def test_other_patterns_stay(body: str) -> None:
    assert "Conv" not in left(body)[0]


def test_a_weight_that_others_read_stays_a_matrix() -> None:
    text = graph_text(f"""agraph (float[N, H, 3, 2] x) => (float[A, B, C, D] y, float[E, F, G, I] u) {CONSTANTS} {{
        a = MatMul(x, w)  z = Add(a, b)  u = MatMul(x, w)  {LAST} }}""")
    model, _ = run_passes(text, PASSES)
    assert "Conv" not in op_types(model)


@pytest.mark.parametrize("perm", [[0, 3, 2, 1], [0, 2, 3, 1], [3, 0, 1, 2]])
def test_other_permutations_stay(perm: list[int]) -> None:
    text = graph_text(f"""agraph (float[N, H, 3, 2] x) => (float[A, B, C, D] y) {CONSTANTS} {{
        a = MatMul(x, w)  z = Add(a, b)  y = Transpose <perm = {perm}> (z) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Add", "Transpose"]


def test_double_precision_has_no_such_kernel() -> None:
    text = graph_text("""agraph (double[1, 2, 2, 2] x) => (double[1, 2, 2, 2] y)
        <double[2, 2] w = {1, 2, 3, 4}, double[2] b = {1, 2}> {
            a = MatMul(x, w)  z = Add(a, b)  y = Transpose <perm = [0, 3, 1, 2]> (z) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Add", "Transpose"]


@pytest.mark.parametrize(("image", "fused"), [("[N, H, 3, 2]", False), ("[N, 4, W, 2]", False), ("[N, 4, 3, 2]", True)])
def test_an_image_that_may_be_empty_stays(image: str, fused: bool) -> None:
    """The runtime multiplies empty matrices but refuses to convolve an empty image."""
    operators, why = left("a = MatMul(x, w)  z = Add(a, b)", kind=image)
    assert ("Conv" in operators) == fused
    assert ("the image may be empty" in why) != fused


def test_an_image_that_a_convolution_made_is_not_empty() -> None:
    text = graph_text(f"""agraph (float[N, 2, H, W] p) => (float[A, B, C, D] y)
        {CONSTANTS.replace(">", ", float[2, 1, 3, 3] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1}>")} {{
        i = Conv <group = 2, pads = [1, 1, 1, 1]> (p, k)  t = Transpose <perm = [0, 2, 3, 1]> (i)
        x = LayerNormalization(t, c)  a = MatMul(x, w)  z = Add(a, b)  {LAST} }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Conv", "Transpose", "LayerNormalization", "Transpose", "Conv"]
    assert_same(text, model, exact=False)


@pytest.mark.parametrize(("kind", "back"), [("double", "Cast <to = 1> (d)"), ("int32", "Cast <to = 1> (d)")])
def test_products_in_other_types_stay(kind: str, back: str) -> None:
    """They are followed by a cast to float, but Conv has no kernel for their type."""
    text = graph_text(f"""agraph ({kind}[N, 4, 3, 2] x) => (float[A, B, C, D] y)
        <{kind}[2, 3] w = {{1, -2, 3, 4, 5, 6}}, {kind}[3] b = {{7, 8, -9}}> {{
        a = MatMul(x, w)  d = Add(a, b)  z = {back}  {LAST} }}""")
    model, _ = run_passes(text, PASSES)
    assert "Conv" not in op_types(model)


def test_no_channels_at_all() -> None:
    """The runtime's Conv with no channels returns uninitialized memory."""
    text = graph_text(f"""agraph (float[N, 4, 3, 0] x) => (float[A, B, C, D] y)
        <float[0, 3] w = {{}}, float[3] b = {{7, 8, -9}}> {{ a = MatMul(x, w)  z = Add(a, b)  {LAST} }}""")
    model, _ = run_passes(text, PASSES)
    assert "Conv" not in op_types(model)
