"""Attention sites with their heads and masks, in handwritten models and near misses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from sardonyx.ir import origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.io import from_proto
from sardonyx.verbs.optimize import details
from sardonyx.verbs.optimize.details import SiteDescription

WIDTH, HEADS = 32, 4
CONSTANTS = {
    "w": np.full((WIDTH, WIDTH), 0.1, np.float32), "small": np.full((WIDTH, 8), 0.1, np.float32),
    "head": np.full((HEADS * 5 * 8, 3), 0.1, np.float32),
    "packed": np.full((WIDTH, 3 * WIDTH), 0.1, np.float32), "row": np.ones((WIDTH, 1), np.float32),
    "split": np.array([0, 0, HEADS, 8], np.int64), "merge": np.array([0, 0, WIDTH], np.int64),
    "grouped": np.array([0, 0, 1, 8], np.int64), "spread": np.array([2, HEADS, 5, 8], np.int64),
    "flat": np.array([2 * HEADS, 5, 8], np.int64), "back": np.array([2, HEADS, 5, 8], np.int64),
    "scale": np.array(0.35, np.float32), "learned": np.ones((HEADS, 1, 1), np.float32),
    "low": np.array(-1e30, np.float32), "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
    "first": np.array([0], np.int64), "last": np.array([1], np.int64),
    "triangle": np.triu(np.full((5, 5), -np.inf, np.float32), 1),
    "bias": np.random.default_rng(0).normal(size=(1, HEADS, 5, 5)).astype(np.float32),
}  # fmt: skip
X = "float[2, 5, 32] x"
LINEAR = "ql = MatMul(x, w) kl = MatMul(x, w) vl = MatMul(x, w) "
SPLIT = "qs = Reshape(ql, split) ks = Reshape(kl, split) vs = Reshape(vl, split) "
TURN = "q = Transpose <perm=[0,2,1,3]> (qs) k = Transpose <perm=[0,2,3,1]> (ks) v = Transpose <perm=[0,2,1,3]> (vs) "
WEIGH = "p = Softmax <axis=-1> (m) a = MatMul(p, v) "
MERGE = "t = Transpose <perm=[0,2,1,3]> (a) h = Reshape(t, merge) y = MatMul(h, w)"
HEADED = LINEAR + SPLIT + TURN
PLAIN = HEADED + "s = MatMul(q, k) m = Mul(s, scale) " + WEIGH + MERGE


def model(body: str, inputs: str = X, outputs: str = "float[a, b, c] y") -> onnx.ModelProto:
    """A model from ONNX text; nodes are named after their outputs."""
    header = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
    made = parser.parse_model(f"{header} main ({inputs}) => ({outputs}) {{ {body} }}")
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    for node in made.graph.node:
        node.name = node.output[0]
    return made


def sites(body: str, inputs: str = X, outputs: str = "float[a, b, c] y") -> tuple[SiteDescription, ...]:
    read = from_proto(model(body, inputs, outputs))
    origins.attach(read)
    return details.find_sites(Facts(read))


def only(body: str, inputs: str = X, outputs: str = "float[a, b, c] y") -> SiteDescription:
    (site,) = sites(body, inputs, outputs)
    return site


def sizes(site: SiteDescription) -> tuple[int | None, int | None, int | None]:
    return site.heads, site.key_value_heads, site.head_size


def test_a_decomposed_attention_is_reported_with_all_its_nodes() -> None:
    site = only(PLAIN)
    assert sizes(site) == (4, 4, 8)
    assert (site.mask, site.causal, site.cached, site.cross) == ("none", False, False, False)
    assert site.form.operator == ""
    assert site.form.nodes == ("s", "m", "p", "a")
    assert (site.softmax, site.result) == ("p", "a")


def test_scales_on_the_operands_and_later_layout_operators_belong_to_the_site() -> None:
    body = LINEAR + SPLIT + TURN.replace("k = Transpose <perm=[0,2,3,1]> (ks)", "kt = Transpose <perm=[0,2,1,3]> (ks)")
    body += "kc = Mul(scale, kt) k = Transpose <perm=[0,1,3,2]> (kc) qc = Div(q, scale) m = MatMul(qc, k) "
    assert only(body + WEIGH + MERGE).form.nodes == ("kc", "k", "qc", "m", "p", "a")
    learned = HEADED + "qn = Mul(q, learned) m = MatMul(qn, k) " + WEIGH + MERGE
    assert only(learned).form.nodes == ("m", "p", "a")  # a norm's weight, not a scale


NEAR_MISSES = {
    "a classifier": LINEAR + "y = Softmax(ql)",
    "a classifier before a layer": "l = MatMul(x, w) p = Softmax(l) y = MatMul(p, w)",
    "pooling by learned scores": "l = MatMul(x, row) p = Softmax <axis=1> (l) t = Transpose <perm=[0,2,1]> (p) "
    "y = MatMul(t, x)",
    "linear attention": HEADED + "f = Softmax <axis=-1> (q) g = Softmax <axis=-2> (k) c = MatMul(g, v) "
    "a = MatMul(f, c) " + MERGE,
    "products without a Softmax": HEADED + "s = MatMul(q, k) m = Relu(s) a = MatMul(m, v) " + MERGE,
    "gates": "l = MatMul(x, w) p = Softmax(l) y = Mul(p, x)",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_no_attention(name: str) -> None:
    assert sites(NEAR_MISSES[name]) == ()


def test_heads_are_counted_in_every_layout() -> None:
    folded = HEADED.replace("k = Transpose <perm=[0,2,3,1]>", "k = Transpose <perm=[0,2,1,3]>")
    folded += "qf = Reshape(q, flat) kf = Reshape(k, flat) vf = Reshape(v, flat) kt = Transpose <perm=[0,2,1]> (kf) "
    folded += "m = MatMul(qf, kt) p = Softmax(m) af = MatMul(p, vf) a = Reshape(af, back) "
    assert sizes(only(folded + MERGE)) == (4, 4, 8)  # batch and heads are one axis
    single = LINEAR + "k = Transpose <perm=[0,2,1]> (kl) m = MatMul(ql, k) p = Softmax(m) a = MatMul(p, vl) "
    assert sizes(only(single + "y = MatMul(a, w)")) == (1, 1, 32)
    assert sizes(only(single + "y = Concat <axis=-1> (a, x)")) == (1, 1, 32)  # known from the preceding layer alone
    flattened = HEADED + "m = MatMul(q, k) " + WEIGH + "h = Flatten(a) y = MatMul(h, head)"
    assert sizes(only(flattened, outputs="float[a, b] y")) == (
        4,
        4,
        8,
    )  # the next operator reads positions and heads together
    turned = HEADED + "qt = Transpose <perm=[0,1,3,2]> (q) m = com.microsoft.FusedMatMul <transA = 1> (qt, k) "
    assert sizes(only(turned + WEIGH + MERGE)) == (4, 4, 8)
    written = LINEAR + SPLIT + 'm = Einsum <equation="bqhd,bkhd->bhqk"> (qs, ks) p = Softmax(m) '
    written += 'e = Einsum <equation="bhqk,bkhd->bqhd"> (p, vs) h = Reshape(e, merge) y = MatMul(h, w)'
    assert sizes(only(written)) == (4, 4, 8)


def test_one_key_head_may_serve_several_query_heads() -> None:
    one = "ql = MatMul(x, w) kl = MatMul(x, small) vl = MatMul(x, small) qs = Reshape(ql, split) "
    one += "ks = Reshape(kl, grouped) vs = Reshape(vl, grouped) " + TURN
    assert sizes(only(one + "m = MatMul(q, k) " + WEIGH + MERGE)) == (4, 1, 8)  # by broadcasting
    repeated = one.replace("k = Transpose <perm=[0,2,3,1]>", "k = Transpose <perm=[0,2,1,3]>")
    repeated += "ke = Expand(k, spread) ve = Expand(v, spread) kt = Transpose <perm=[0,1,3,2]> (ke) m = MatMul(q, kt) "
    repeated += "p = Softmax(m) a = MatMul(p, ve) "
    assert sizes(only(repeated + MERGE)) == (4, 1, 8)


def test_dynamic_sizes_are_not_guessed() -> None:
    body = "k = Transpose <perm=[0,2,1]> (x) m = MatMul(x, k) p = Softmax(m) y = MatMul(p, x)"
    assert sizes(only(body, "float[B, N, D] x")) == (None, None, None)


MASKS = {
    "none": "m = Mul(s, scale)",
    "from an input": "b = Cast <to=9> (given) m = Where(b, s, low)",
    "causal": "m = Add(s, triangle)",
    "a constant": "m = Add(bias, s)",
    "causal and from an input": "f = Cast <to=1> (given) both = Add(f, triangle) m = Add(s, both)",
    "from an input and a constant": "f = Cast <to=1> (given) g = Add(s, f) m = Add(g, bias)",
    "a bias by position": "z = Shape(x) n = Gather(z, one) r = Range(zero, n, one) rows = Unsqueeze(r, last) "
    "columns = Unsqueeze(r, first) d = Sub(rows, columns) far = Abs(d) c = Cast <to=1> (far) m = Sub(s, c)",
}


@pytest.mark.parametrize("words", MASKS)
def test_masks_are_described(words: str) -> None:
    site = only(HEADED + "s = MatMul(q, k) " + MASKS[words] + " " + WEIGH + MERGE, f"{X}, int64[2, 1, 1, 5] given")
    assert site.mask == words
    assert site.causal == ("causal" in words)


def test_a_mask_of_activations_is_not_described_as_an_input() -> None:
    body = HEADED + "s = MatMul(q, k) g = MatMul(x, small) r = ReduceMean <keepdims=0> (g, last) "
    body += "u = Unsqueeze(r, first) m = Add(s, u) " + WEIGH + MERGE
    assert only(body).mask == "computed from activations"


@pytest.mark.parametrize("step", ["Mul(s, learned)", "Mul(learned, s)", "Add(s, scale)", "Div(s, scale)"])
def test_a_scale_is_no_mask(step: str) -> None:
    assert only(HEADED + f"s = MatMul(q, k) m = {step} " + WEIGH + MERGE).mask == "none"


FUSED = {
    "a = Attention(q, k, v)": ("Attention", (4, 2, 8), "none", False),
    "a = Attention <is_causal = 1> (q, k, v, given)": ("Attention", (4, 2, 8), "causal and from an input", True),
    "a = Attention <q_num_heads = 4, kv_num_heads = 2> (x, half, half)": ("Attention", (4, 2, 8), "none", False),
    "a = com.microsoft.MultiHeadAttention <num_heads = 4> (x, z, z)": (
        "com.microsoft::MultiHeadAttention", (4, 4, 8), "none", False),
    "a = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (x, half, half, , , n, t)": (
        "com.microsoft::GroupQueryAttention", (4, 2, 8), "causal", True),
    "a = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (x, , , , , n, t)": (
        "com.microsoft::GroupQueryAttention", (2, 1, 8), "causal", True),
    "a = com.microsoft.Attention <num_heads = 4, unidirectional = 1> (x, packed)": (
        "com.microsoft::Attention", (4, 4, 8), "causal", True),
    "a = com.microsoft.Attention <num_heads = 4, qkv_hidden_sizes = [16, 16, 32]> (x, packed)": (
        "com.microsoft::Attention", (4, 4, 4), "none", False),
}  # fmt: skip
OPERANDS = "float[2, 5, 32] x, float[2, 5, 32] z, float[2, 5, 16] half, float[2, 4, 5, 8] q, float[2, 2, 5, 8] k, "
OPERANDS += "float[2, 2, 5, 8] v, float[2, 1, 5, 5] given, int32[2, 1] n, int32 t"


@pytest.mark.parametrize("body", FUSED)
def test_attention_operators_are_described(body: str) -> None:
    site = only(body, OPERANDS, "float[d, e, f] a")
    assert (site.form.operator, sizes(site), site.mask, site.causal) == FUSED[body]
    assert (site.form.nodes, site.softmax, site.result) == (("a",), "", "a")


def test_heads_of_an_operator_may_be_in_its_batch_dim() -> None:
    body = "n = Attention(q, q, q) a = Reshape(n, back) " + MERGE
    assert sizes(only(body, "float[8, 1, 5, 8] q")) == (4, 4, 8)
    flat = "n = Attention <q_num_heads = 1, kv_num_heads = 1> (q, q, q) a = Reshape(n, back) " + MERGE
    assert sizes(only(flat, "float[8, 5, 8] q")) == (4, 4, 8)
    assert sizes(only("y = Attention(q, q, q)", "float[8, 1, 5, 8] q", "float[a, b, c, d] y")) == (1, 1, 8)


def test_sites_in_bodies_and_functions_are_detected() -> None:
    body = f"y = If (c) <then_branch = t () => (y1) {{ {PLAIN.replace(' y = ', ' y1 = ')} }}, "
    body += "else_branch = e () => (y2) { y2 = Identity(x) }>"
    assert sizes(only(body, f"{X}, bool c")) == (4, 4, 8)
    text = '<ir_version: 10, opset_import: ["" : 23, "own" : 1]> main (float[2, 4, 5, 8] q) => (float[a, b, c, d] y) '
    text += "{ y = own.attend(q, q, q) } "
    text += '<domain: "own", opset_import: ["" : 23]> attend (q, k, v) => (y) '
    text += "{ t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, v) }"
    read = from_proto(parser.parse_model(text))
    origins.attach(read)
    (site,) = details.find_sites(Facts(read))
    assert sizes(site) == (4, 4, 8)
