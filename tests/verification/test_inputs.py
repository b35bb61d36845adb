"""Random inputs: chosen by use and not by name, consistent in size, padded if masked, reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from sardonyx.inputs.generator import Inputs, Style, TrialPlan
from sardonyx.inputs.roles import Role
from sardonyx.inputs.sizes import DynamicDims
from sardonyx.ir import io
from verification.text_models import array, text_model


def loaded(body: str, **weights: np.ndarray) -> ir.Model:
    return io.from_proto(text_model(body, **weights))


def normal(seed: int = 0, round_: int = 0, style: Style = Style.NORMAL) -> TrialPlan:
    return TrialPlan(seed, round_, style)


TABLE = np.zeros((10, 4), np.float32)


@pytest.mark.parametrize(
    "route",
    [
        "y = Gather (table, a)",
        "i = Cast <to = 7> (a) y = Gather (table, i)",
        "i = Identity (a) j = Transpose <perm = [1, 0]> (i) y = Gather (table, j)",
        "y = If (c) <then_branch = t () => (float[n, m, 4] u) {u = Gather (table, a)},"
        " else_branch = e () => (float[n, m, 4] v) {v = Gather (table, a)}>",
    ],
)
def test_indices_stay_within_the_table(route: str) -> None:
    model = loaded(f"g (int32[n, m] a, bool c) => (float[x, y, z] y) {{ {route} }}", table=TABLE)
    inputs = Inputs(model)
    assert (inputs.use("a").role, inputs.use("a").rows) == (Role.INDEX, 10)
    generated = np.concatenate([array(inputs.generate(p).feeds["a"]).ravel() for p in inputs.plans((0, 1, 2))])
    assert generated.min() == 0
    assert generated.max() == 9


def test_an_offset_before_the_table_narrows_the_range() -> None:
    body = """g (int64[n] a) => (float[n, 4] y) {
        two = Constant <value = int64 {2}> () b = Add (a, two) y = Gather (table, b) }"""
    assert Inputs(loaded(body, table=TABLE)).use("a").rows == 8


def test_an_index_is_followed_into_a_function() -> None:
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18, "local": 1]>
        g (int64[n] a, float[5, 4] t) => (float[n, 4] y) { y = local.look (t, a) }
        <domain: "local", opset_import: ["": 18]>
        look (table, rows) => (picked) { picked = Gather (table, rows) }
    """)
    assert Inputs(io.from_proto(proto)).use("a").role is Role.INDEX


MASKS = {
    "added": "one = Constant <value = float {1}> () big = Constant <value = float {-1e4}> () f = Cast <to = 1> (p)"
    " o = Sub (one, f) h = Mul (o, big) ax = Constant <value = int64[1] {1}> () u = Unsqueeze (h, ax) s = Add (m, u)",
    "chosen": "ax = Constant <value = int64[1] {1}> () b = Cast <to = 9> (p) u = Unsqueeze (b, ax)"
    " low = Constant <value = float {-3e38}> () s = Where (u, m, low)",
}


@pytest.mark.parametrize("route", MASKS)
@pytest.mark.parametrize("kind", ["int64", "float", "bool"])
def test_a_mask_is_recognized_by_its_use_whatever_its_name(route: str, kind: str) -> None:
    model = loaded(
        f"g (float[b, n, 8] x, {kind}[b, n] p) => (float[b, n, n] y)"
        f"{{ t = Transpose <perm = [0, 2, 1]> (x) m = MatMul (x, t) {MASKS[route]} y = Softmax <axis = -1> (s) }}"
    )
    inputs = Inputs(model)
    assert inputs.use("p").role is Role.MASK
    assert inputs.use("x").role is Role.DATA
    for plan in inputs.plans((0, 1, 2, 3)):
        if plan.empty:
            continue
        kept = array(inputs.generate(plan).feeds["p"]).astype(bool)
        hidden = ~kept.any(axis=-1)
        assert hidden.any() == plan.hides_row, "rows without anything kept"
        assert not hidden.all(), "nothing kept anywhere"
        full = kept.shape[-1] == 1 or plan.style is Style.POSITIVE
        assert kept.all() == full, "padding, but in the trial that compares every position"


def test_padding_occurs_on_both_sides() -> None:
    model = loaded(
        "g (float[b, n] x, bool[b, n] p) => (float[b, n] y)"
        "{ low = Constant <value = float {-1e9}> () s = Where (p, x, low) y = Softmax (s) }"
    )
    inputs = Inputs(model)
    right = array(inputs.generate(normal()).feeds["p"])
    assert (right[:, 0].all(), right[:, -1].all()) == (True, False)
    masks = [array(inputs.generate(plan).feeds["p"]) for plan in inputs.plans((0, 1, 2, 3)) if not plan.empty]
    rows = [row for mask in masks for row in mask]
    assert any(row[-1] and not row[0] for row in rows), "padded on the left"


def test_an_index_named_like_a_mask_is_an_index() -> None:
    model = loaded("g (int64[n] mask) => (float[n, 4] y) { y = Gather (table, mask) }", table=TABLE)
    assert Inputs(model).use("mask").role is Role.INDEX


def test_a_padding_token_that_the_model_compares_with_is_generated() -> None:
    body = """g (int64[b, n] ids) => (float[b, n, 4] y, bool[b, n] pad) {
        token = Constant <value = int64 {7}> () pad = Equal (ids, token) y = Gather (table, ids) }"""
    inputs = Inputs(loaded(body, table=TABLE))
    assert inputs.use("ids").specials == (7,)
    assert (array(inputs.generate(normal()).feeds["ids"])[0, -1]) == 7


def test_a_comparison_with_infinity_names_no_token() -> None:
    body = """g (float[b, n] x) => (bool[b, n] y) {
        low = Constant <value = float {-inf}> () y = Equal (x, low) }"""
    assert Inputs(loaded(body)).use("x").specials == ()


def test_divisors_are_not_zero() -> None:
    inputs = Inputs(loaded("g (int32[n] a, int32[n] b) => (int32[n] y) { y = Div (a, b) }"))
    for plan in inputs.plans((0, 1, 2, 3)):
        for way in range(inputs.ways):
            assert (array(inputs.generate(plan, way).feeds["b"]) > 0).all()


def test_shapes_are_small_and_usable() -> None:
    inputs = Inputs(loaded("g (float[4, 6] x, int64[3] s) => (float[a, b, c] y) { y = Reshape (x, s) }"))
    assert array(inputs.generate(normal()).feeds["s"]).tolist() == [1, 1, -1]


def test_real_numbers_have_both_signs_and_several_scales() -> None:
    inputs = Inputs(loaded("g (float[100, 100] x) => (float[100, 100] y) { y = Relu (x) }"))
    plain = array(inputs.generate(normal()).feeds["x"])
    wide = array(inputs.generate(normal(style=Style.WIDE)).feeds["x"])
    positive = array(inputs.generate(normal(style=Style.POSITIVE)).feeds["x"])
    special = array(inputs.generate(normal(style=Style.SPECIAL)).feeds["x"])
    assert plain.min() < -1 < 1 < plain.max()
    assert np.abs(wide).max() > 30
    assert (wide == 0).any()
    assert np.median(np.abs(wide)) < 0.3
    assert positive.min() > 0
    assert np.isnan(special).any()
    assert np.isinf(special).any()


@given(seed=st.integers(0, 2**32 - 1), style=st.sampled_from(Style))
def test_inputs_depend_on_the_seed_alone(seed: int, style: Style) -> None:
    model = loaded("g (float[b, n] x, int64[b] i, bool[b] m) => (float[b, n] y) { y = Relu (x) }")
    first, second = (Inputs(model).generate(normal(seed, style=style)).feeds for _ in range(2))
    other = Inputs(model).generate(normal(seed + 1, style=style)).feeds
    for name, value in first.items():
        np.testing.assert_array_equal(array(value), array(second[name]))
    assert not np.array_equal(array(first["x"]), array(other["x"]), equal_nan=True)


def dims_of(*shapes: list[int | str | None]) -> DynamicDims:
    return DynamicDims([ir.Value(name=f"v{i}", shape=ir.Shape(shape)) for i, shape in enumerate(shapes)])


SYMBOLS = st.sampled_from(["batch", "seq", "past", "heads"])


@given(
    st.lists(st.lists(st.one_of(st.integers(1, 5), SYMBOLS, st.none()), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_every_dynamic_dim_gets_two_sizes_and_one_size_a_name(shapes: list[list[int | str | None]]) -> None:
    dims = dims_of(*shapes)
    for rule in dims.rules():
        rounds = [rule(r, {}) for r in range(3)]
        for name in dims.names:
            assert len({sizes[name] for sizes in rounds}) > 1
        for index, shape in enumerate(shapes):
            generated = dims.shape(f"v{index}", rounds[0])
            for axis, dim in enumerate(shape):
                expected = dim if isinstance(dim, int) else rounds[0][dim if dim is not None else f"v{index}[{axis}]"]
                assert generated[axis] == expected


def test_a_dim_that_is_a_sum_is_the_sum() -> None:
    dims = dims_of(["batch", "past + seq"], ["batch", "seq"], ["batch", "past"])
    assert dims.names == ["batch", "seq", "past"] or set(dims.names) == {"batch", "seq", "past"}
    for round_ in range(3):
        sizes = next(dims.rules())(round_, {})
        assert dims.shape("v0", sizes) == (sizes["batch"], sizes["past"] + sizes["seq"])


def test_names_that_only_look_like_arithmetic_are_names() -> None:
    dims = dims_of(["Addonnx::Gather_1558_dim_0", "a.b", "2x"])
    assert set(dims.names) == {"Addonnx::Gather_1558_dim_0", "a.b", "2x"}


def test_independent_dims_get_distinct_sizes() -> None:
    sizes = next(dims_of(["b", "rows", "columns", "depth"]).rules())(0, {})
    assert len(set(sizes.values())) == 4


def test_weights_are_not_read(small_model: Callable[[str, str], Path]) -> None:
    """Only shapes of tables are needed; the largest weights stay on disk."""
    model = io.load(small_model("bert", "torchscript"))
    inputs = Inputs(model)
    assert {n: inputs.use(n).role for n in inputs.required} == {
        "input_ids": Role.INDEX,
        "attention_mask": Role.MASK,
        "token_type_ids": Role.INDEX,
    }
    assert (inputs.use("input_ids").rows, inputs.use("token_type_ids").rows) == (1000, 2)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_roles_are_found_in_what_exporters_write(
    name: str, exporter: str, small_model: Callable[[str, str], Path], tmp_path: Path
) -> None:
    proto = onnx.load(small_model(name, exporter))
    renames = {value.name: f"anonymous_{i}" for i, value in enumerate(proto.graph.input)}
    for value in proto.graph.input:
        value.name = renames[value.name]
    for node in proto.graph.node:
        node.input[:] = [renames.get(n, n) for n in node.input]
    inputs = Inputs(io.from_proto(proto))
    assert inputs.use(renames["input_ids"]).rows == 1000
    assert inputs.use(renames["attention_mask"]).role is Role.MASK


def test_defaults_are_kept_and_once_overridden() -> None:
    model = loaded("g (float[n] x, float[1] k) => (float[n] y) { y = Mul (x, k) }", k=np.array([3], np.float32))
    inputs = Inputs(model)
    generated = [inputs.generate(plan).feeds for plan in inputs.plans((0, 1))]
    fed = [array(feeds["k"])[0] for feeds in generated if "k" in feeds]
    assert len(fed) == 1
    assert fed[0] != 3
