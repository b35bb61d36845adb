"""Every detector finds its pattern in each form and ignores near misses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from sardonyx.analysis.fusion_patterns import PATTERNS, PatternMatch, Survey
from sardonyx.ir import io
from sardonyx.ir.facts import Facts


def survey(body: str, signature: str = "(float[2,6,8] x) => (float[2,6,8] y)", weights: str = "", opset: int = 17):
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    text = f"{head}\ng {signature} <{weights}> {{ {body} }}" if weights else f"{head}\ng {signature} {{ {body} }}"
    facts = Facts(io.from_proto(filled(onnx.parser.parse_model(text))))
    facts.infer()
    return Survey(facts)


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give values to weights that were declared without them."""
    for declared in model.graph.value_info:
        shape = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.5, np.float32), declared.name))
    del model.graph.value_info[:]
    return model


def pattern_counts(look: Survey) -> dict[str, int]:
    """The number of matches of every pattern that occurs."""
    return {pattern.name: count for pattern in PATTERNS if (count := len(list(pattern.find(look))))}


def places(look: Survey, name: str) -> list[PatternMatch]:
    return [tuple(place) for pattern in PATTERNS if pattern.name == name for place in pattern.find(look)]


SCALAR = "float one = {1.0}, float two = {2.0}, float eps = {1e-5}"
NORM = """
    m = ReduceMean<axes = [-1]> (x)
    d = Sub (x, m)
    s = {square}
    v = ReduceMean<axes = [-1]> (s)
    e = Add ({added})
    r = Sqrt (e)
    y = Div (d, r)
"""


@pytest.mark.parametrize("square", ["Pow (d, two)", "Mul (d, d)"])
@pytest.mark.parametrize("added", ["v, eps", "eps, v"])
def test_a_layer_norm_is_detected_in_every_form(square: str, added: str) -> None:
    assert pattern_counts(survey(NORM.format(square=square, added=added), weights=SCALAR)) == {"layer-norms": 1}


def test_without_subtracting_the_mean_it_is_an_rms_norm() -> None:
    body = "s = Mul (x, x) v = ReduceMean<axes = [-1]> (s) e = Add (v, eps) r = Sqrt (e) y = Div (x, r)"
    assert pattern_counts(survey(body, weights=SCALAR)) == {"rms-norms": 1}


def test_the_mean_of_a_cube_is_no_norm() -> None:
    assert pattern_counts(survey(NORM.format(square="Pow (d, one)", added="v, eps"), weights=SCALAR)) == {}


ATTENTION = """
    k = Transpose<perm = [0, 2, 1]> (x)
    s = MatMul (x, k)
    {scaled}
    p = Softmax<axis = -1> (t)
    y = MatMul (p, x)
"""


@pytest.mark.parametrize(
    ("scaled", "between"),
    [
        ("t = Identity (s)", ["Identity"]),
        ("t = Div (s, two)", ["Div"]),
        ("u = Mul (two, s) t = Add (eps, u)", ["Mul", "Add"]),
        ("n = Neg (x) h = Mul (n, two) r = ReduceMax<axes = [-1]> (h) t = Add (r, s)", ["Add"]),
        ("t = Where (c, s, eps)", ["Where"]),
    ],
)
def test_an_attention_core_is_detected_with_scale_and_mask_anywhere(scaled: str, between: list[str]) -> None:
    signature = "(float[2,6,8] x, bool[2,1,6] c) => (float[2,6,8] y)"
    core = places(survey(ATTENTION.format(scaled=scaled), signature, SCALAR), "attention-cores")
    assert [[node.op_type for node in place] for place in core] == [["MatMul", *between, "Softmax", "MatMul"]]


def test_a_softmax_before_a_weight_is_no_attention() -> None:
    body = "p = Softmax<axis = -1> (x) y = MatMul (p, w)"
    assert pattern_counts(survey(body, weights="float[8,8] w")) == {}


def test_a_softmax_after_a_weight_is_no_attention() -> None:
    body = "s = MatMul (x, w) p = Softmax<axis = -1> (s) y = MatMul (p, x)"
    assert pattern_counts(survey(body, weights="float[8,6] w")) == {}


def test_products_with_a_bias_are_distinguished_by_rank() -> None:
    weights = "float[8,8] w, float[8] b"
    assert pattern_counts(survey("m = MatMul (x, w) y = Add (b, m)", weights=weights)) == {"deep-products": 1}
    flat = "(float[6,8] x) => (float[6,8] y)"
    assert pattern_counts(survey("m = MatMul (x, w) y = Add (m, b)", flat, weights)) == {"flat-products": 1}


def test_a_product_with_a_transposed_weight_counts_and_the_transpose_is_an_unfolded_constant() -> None:
    body = "t = Transpose<perm = [1, 0]> (w) m = MatMul (x, t) y = Add (m, b)"
    assert pattern_counts(survey(body, weights="float[8,8] w, float[8] b")) == {
        "deep-products": 1,
        "unfolded-constants": 1,
    }


def test_a_sum_with_two_uses_or_two_computed_operands_is_no_bias() -> None:
    weights = "float[8,8] w, float[8] b"
    assert pattern_counts(survey("m = MatMul (x, w) a = Add (m, b) y = Add (a, m)", weights=weights)) == {}
    assert pattern_counts(survey("m = MatMul (x, w) y = Add (m, x)", weights=weights)) == {}


def test_three_products_of_one_input_are_detected_through_reshapes() -> None:
    body = """
        f = Reshape (x, flat)
        q = MatMul (f, a) k = MatMul (x, b) v = MatMul (x, c)
        q3 = Reshape (q, deep) s = Add (q3, k) y = Add (s, v)
    """
    weights = "float[8,8] a, float[8,8] b, float[8,8] c, int64[2] flat = {12, 8}, int64[3] deep = {2, 6, 8}"
    assert pattern_counts(survey(body, weights=weights)) == {"qkv-products": 1}
    two = "k = MatMul (x, b) v = MatMul (x, c) y = Add (k, v)"
    assert pattern_counts(survey(two, weights="float[8,8] b, float[8,8] c")) == {}


def test_chains_of_any_length_are_counted_once() -> None:
    body = """
        r = Relu (x)
        a = Transpose<perm = [0, 2, 1]> (r) b = Transpose<perm = [1, 0, 2]> (a) c = Transpose<perm = [1, 2, 0]> (b)
        d = Reshape (c, flat) e = Reshape (d, deep) y = Relu (e)
    """
    weights = "int64[1] flat = {-1}, int64[3] deep = {2, 6, 8}"
    assert pattern_counts(survey(body, weights=weights)) == {"transpose-chains": 1, "reshape-chains": 1}


def test_a_chain_ends_at_a_value_with_another_use() -> None:
    body = "a = Transpose<perm = [0, 2, 1]> (x) b = Transpose<perm = [0, 2, 1]> (a) s = ReduceSum (a) y = Add (b, s)"
    assert pattern_counts(survey(body)) == {}


def test_no_ops_are_detected() -> None:
    body = """
        a = Transpose<perm = [0, 1, 2]> (x) b = Relu (a) c = Reshape (b, same) d = Relu (c)
        e = Expand (d, small) f = Relu (e) h = Cast<to = 1> (f) y = Relu (h)
    """
    weights = "int64[3] same = {2, 6, -1}, int64[1] small = {1}"
    assert Counter(pattern_counts(survey(body, weights=weights))) == Counter(
        {"idle-transposes": 1, "idle-reshapes": 1, "idle-expands": 1, "idle-casts": 1}
    )


def test_a_transpose_of_unit_dims_is_a_no_op() -> None:
    signature = "(float[2,1,8] x) => (float[1,2,8] y)"
    assert pattern_counts(survey("y = Transpose<perm = [1, 0, 2]> (x)", signature)) == {"idle-transposes": 1}
    assert pattern_counts(survey("y = Transpose<perm = [2, 1, 0]> (x)", "(float[2,1,8] x) => (float[8,1,2] y)")) == {}


def test_consecutive_casts_are_a_chain() -> None:
    assert pattern_counts(survey("a = Cast<to = 11> (x) b = Relu (a) c = Cast<to = 6> (b) y = Cast<to = 1> (c)")) == {
        "cast-chains": 1
    }


def test_a_shape_chain_ends_with_the_last_size() -> None:
    body = "s = Shape (x) n = Gather (s, i) u = Unsqueeze (n, zero) t = Concat<axis = 0> (u, rest) y = Reshape (x, t)"
    weights = "int64 i = {0}, int64[1] zero = {0}, int64[1] rest = {48}"
    look = survey(body, "(float[n,6,8] x) => (float[n,48] y)", weights)
    (chain,) = places(look, "shape-chains")
    assert [node.op_type for node in chain] == ["Shape", "Gather", "Unsqueeze", "Concat"]


def test_a_shape_chain_ends_where_sizes_become_real_numbers() -> None:
    body = "s = Shape (x) n = Gather (s, i) f = Cast<to = 1> (n) h = Mul (f, f) y = Mul (x, h)"
    (chain,) = places(survey(body, "(float[n,6,8] x) => (float[n,6,8] y)", "int64 i = {0}"), "shape-chains")
    assert [node.op_type for node in chain] == ["Shape", "Gather", "Cast"]


def test_an_unfolded_constant_is_counted_at_its_use_with_all_its_producers() -> None:
    body = "a = Add (w, w) b = Mul (a, w) c = Neg (b) y = Add (x, c)"
    (region,) = places(survey(body, weights="float[8] w"), "unfolded-constants")
    assert [node.op_type for node in region] == ["Add", "Mul", "Neg"]


def test_random_numbers_and_overridable_weights_are_no_constants() -> None:
    assert pattern_counts(survey("r = RandomNormalLike (w) y = Add (x, r)", weights="float[8] w")) == {}
    signature = "(float[2,6,8] x, float[8] w = {1,2,3,4,5,6,7,8}) => (float[2,6,8] y)"
    assert pattern_counts(survey("a = Neg (w) y = Add (x, a)", signature)) == {}


@pytest.mark.parametrize("bend", ["Erf", "Tanh"])
def test_a_gelu_is_detected_with_erf_and_tanh(bend: str) -> None:
    body = f"h = Div (x, two) t = {bend} (h) a = Add (one, t) m = Mul (x, a) y = Div (m, two)"
    assert pattern_counts(survey(body, weights=SCALAR)) == {"gelus": 1}
    assert pattern_counts(survey(body.replace("(one, t)", "(two, t)"), weights=SCALAR)) == {}


@pytest.mark.parametrize(
    "parts",
    [
        "a, b = Split<axis = -1> (x, sizes)",
        "a = Slice (x, zero, half, last) b = Slice (x, half, end, last)",
    ],
)
def test_a_rotation_of_halves_is_detected(parts: str) -> None:
    weights = (
        "int64[2] sizes = {4, 4}, int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {2}"
    )
    look = survey(f"{parts} n = Neg (b) y = Concat<axis = -1> (n, a)", weights=weights)
    assert pattern_counts(look) == {"rotary-rotations": 1}


def test_layers_with_their_batch_norm_or_activation_are_detected() -> None:
    signature = "(float[1,3,8,8] x) => (float[1,4,8,8] y)"
    weights = "float[4,3,1,1] w, float[4] a, float[4] b, float[4] c, float[4] d"
    norm = "k = Conv (x, w) n = BatchNormalization (k, a, b, c, d) y = Relu (n)"
    assert pattern_counts(survey(norm, signature, weights)) == {"layer-batch-norms": 1}
    assert pattern_counts(survey("k = Conv (x, w) y = Relu (k)", signature, weights)) == {"conv-activations": 1}


def test_fused_operators_of_any_domain_count() -> None:
    body = "a = LayerNormalization (x, g) b = com.microsoft.FastGelu (a)"
    body += " y = com.microsoft.SkipLayerNormalization (b, a, g)"
    assert pattern_counts(survey(body, weights="float[8] g")) == {"layer-norm-operators": 2, "gelu-operators": 1}


def test_bodies_of_control_flow_are_included() -> None:
    body = """
        y = If (c) <
            then_branch = t () => (float[2,6,8] p) { p = Transpose<perm = [0, 1, 2]> (x) },
            else_branch = e () => (float[2,6,8] q) { q = Neg (x) }
        >
    """
    assert pattern_counts(survey(body, "(float[2,6,8] x, bool c) => (float[2,6,8] y)")) == {"idle-transposes": 1}


def test_pattern_names_are_unique() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS) == len({pattern.what for pattern in PATTERNS})
