"""No rewrite changes the sign of a zero that a division turns into the sign of an infinity, or that becomes text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import graph_text, op_types, outputs, parse, reasons, run_passes
from sardonyx.ir.ops import RANDOM
from sardonyx.passes.broadcasting.fold_where_branches import FoldWhereBranches
from sardonyx.passes.cleanup.eliminate_add_zero import EliminateAddZero
from sardonyx.passes.cleanup.eliminate_noop_arithmetic import EliminateNoopArithmetic
from sardonyx.passes.products.fuse_conv_affine import FuseConvAffine
from sardonyx.passes.products.fuse_product_scale import FuseProductScale

PASSES = (EliminateAddZero(), EliminateNoopArithmetic(), FoldWhereBranches())
CONSTANTS = """<float zero = {0}, float negative = {-0.0}, float one = {1}, float two = {-2}, float inverse = {-1},
    float third = {3}, bool yes = {1}, bool no = {0}>"""
BEFORE = ("Identity(@)", "Neg(@)", "Exp(@)", "Abs(@)", "Relu(@)", "Mul(@, zero)", "Sub(@, @)")
NEUTRAL = (
    "Add(@, zero)", "Add(zero, @)", "Sub(@, negative)", "Sub(@, zero)", "Add(@, negative)", "Where(yes, @, one)",
    "Where(no, one, @)", "Mul(@, one)", "Div(@, one)", "Pow(@, one)",
)  # fmt: skip
AFTER = (
    "Neg(@)", "Reciprocal(@)", "Div(one, @)", "Div(@, third)", "Pow(@, inverse)", "Pow(@, third)", "Exp(@)",
    "Softmax(@)", "Mul(@, two)", "Add(@, one)", "Add(@, negative)", "Mul(@, @)", "Sqrt(@)", "Max(@, negative)",
)  # fmt: skip


def chained(calls: list[str]) -> str:
    """A chain of calls from x to y."""
    lines = [f"v{place + 1} = {call.replace('@', f'v{place}')}" for place, call in enumerate(calls)]
    body = f"v0 = Identity(x) {' '.join(lines)} y = Neg(v{len(calls)})"
    return graph_text(f"agraph (float[N] x) => (float[N] y) {CONSTANTS} {{ {body} }}")


@pytest.mark.slow
@settings(max_examples=300)
@given(
    before=st.lists(st.sampled_from(BEFORE), max_size=2),
    neutral=st.lists(st.sampled_from(NEUTRAL), min_size=1, max_size=2),
    after=st.lists(st.sampled_from(AFTER), max_size=3),
)
def test_infinities_keep_their_sign(before: list[str], neutral: list[str], after: list[str]) -> None:
    text = chained([*before, *neutral, *after])
    model, _ = run_passes(text, PASSES)
    hostile = np.array([0.0, -0.0, 1.5, -2, np.inf, -np.inf, np.nan, 1e-42, 0.0, -0.0, -2], np.float32)
    for values in (hostile, hostile[-3:]):  # kernels process four or more at once, and the remainder differently
        (wanted,), (got,) = outputs(parse(text), {"x": values}), outputs(ir.to_proto(model), {"x": values})
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("after", "goes"),
    [
        ("Softmax(@)", True),
        ("Add(@, one)", True),
        ("Reciprocal(@)", False),
        ("Neg(@)", True),
        ("Cast <to = 9> (@)", True),
        ("Cast <to = 8> (@)", False),
        ("CastLike(@, text)", False),
    ],
)
def test_a_sum_with_zero_is_removed_if_nothing_shows_its_sign(after: str, goes: bool) -> None:
    text = chained(["Neg(@)", "Add(@, zero)", after]).replace("bool yes", 'string text = {"a"}, bool yes')
    if "ast" in after:
        text = text.replace("y = Neg(v3)", "y = Shape(v3)").replace("(float[N] y)", "(int64[M] y)")
    model, log = run_passes(text, PASSES)
    assert len(op_types(model)) == (4 if goes else 5)
    assert ("the sign of a zero may be visible" in reasons(log)) != goes


@pytest.mark.parametrize("after", ["Reciprocal(s)", "Neg(s)"])
def test_a_negative_scale_is_not_moved_before_a_sum(after: str) -> None:
    """0 * w is 0.0 in a sum, and -0.0 after it is scaled by a negative number."""
    constants = "<float[2, 2] w = {1, 2, 3, 4}, float[2, 2, 1] k = {1, 2, 3, 4}, float minus = {-2}>"
    for body in ("a = MatMul(x, w)", "u = Unsqueeze(x, last)  a = Conv(u, k)"):
        shape = "N, 2" if "MatMul" in body else "N, 2, 1"
        text = graph_text(
            f"""agraph (float[N, 2] x) => (float[{shape}] y) {constants.replace(">", ", int64[1] last = {2}>")} {{
            {body}  s = Mul(a, minus)  y = {after} }}"""
        )
        model, log = run_passes(text, (FuseConvAffine(), FuseProductScale()))
        assert bool(log.events) == ("Neg" in after)
        feeds = {"x": np.array([[0, 0], [1, -1]], np.float32)}
        (wanted,), (got,) = outputs(parse(text), feeds), outputs(ir.to_proto(model), feeds)
        np.testing.assert_array_equal(got, wanted)


SHOWN = frozenset({"Reciprocal", "BitCast"})  # of the operators with one operand


@pytest.mark.slow
def test_no_other_operator_with_one_operand_shows_the_sign_of_a_zero() -> None:
    """Every standard operator that computes floats from one float tensor, in the runtime: only zeros may differ."""
    shown: set[str] = set()
    for schema in onnx.defs.get_all_schemas():
        required = [place for place in schema.inputs if place.option == schema.inputs[0].option]
        if schema.domain or schema.deprecated or len(required) != 1 or schema.min_input > 1:
            continue
        node = onnx.helper.make_node(schema.name, ["x"], ["y"])
        if schema.name == "BitCast":
            node.attribute.append(onnx.helper.make_attribute("to", 6))
        zeros = [np.full((2, 3), zero, np.float32) for zero in (0.0, -0.0)]
        try:
            plus, minus = (run_node(node, array) for array in zeros)
        except Exception:  # it does not take a matrix of floats without attributes
            continue
        if plus.dtype.kind != "b" and not np.array_equal(plus, minus, equal_nan=plus.dtype.kind == "f"):
            shown.add(schema.name)
    assert shown - RANDOM == SHOWN


def run_node(node: onnx.NodeProto, array: np.ndarray) -> np.ndarray:
    """The result of one node."""
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, None])
    result = onnx.helper.make_value_info("y", onnx.TypeProto())
    imports = [onnx.helper.make_opsetid("", 26)]
    graph = onnx.helper.make_graph([node], "g", [info], [result])
    (value,) = outputs(onnx.helper.make_model(graph, opset_imports=imports, ir_version=13), {"x": array})
    assert isinstance(value, np.ndarray)
    return value
