"""CastLike becomes Cast if the type is known, with the same treatment of overflow."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, run_passes
from sardonyx.passes.cleanup.eliminate_cast_like import EliminateCastLike
from sardonyx.passes.cleanup.eliminate_noop_shape import EliminateNoopShape

PASSES = (EliminateCastLike(),)


@pytest.mark.parametrize(("kind", "code"), [("float", 1), ("double", 11), ("int32", 6), ("bool", 9), ("float16", 10)])
def test_the_type_comes_from_the_second_operand(kind: str, code: int) -> None:
    text = graph_text(f"agraph (int64[N] x, {kind}[M] like) => ({kind}[N] y) {{ y = CastLike(x, like) }}")
    model, _ = run_passes(text, PASSES)
    (node,) = model.graph
    assert node.op_type == "Cast"
    assert node.attributes["to"].as_int() == code
    assert_same(text, model)


def test_saturation_is_carried_over() -> None:
    text = graph_text(
        "agraph (float[N] x, float8e4m3fn[M] like) => (float8e4m3fn[N] y) { y = CastLike <saturate = 0> (x, like) }", 19
    )
    (node,) = run_passes(text, PASSES)[0].graph
    assert node.attributes["saturate"].as_int() == 0


def test_a_type_only_known_by_inference_is_enough() -> None:
    text = graph_text("agraph (int64[N] x, int32[M] z) => (double[N] y) { l = Cast <to = 11> (z)  y = CastLike(x, l) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Cast", "Cast"]
    assert_same(text, model)


def test_a_cast_to_the_same_type_is_removed() -> None:
    text = graph_text("agraph (float[N] x, float z) => (float[N] y) { a = Neg(x)  b = CastLike(a, z)  y = Abs(b) }")
    model, _ = run_passes(text, (EliminateCastLike(), EliminateNoopShape()))
    assert op_types(model) == ["Neg", "Abs"]


def test_it_stays_in_a_function_of_unknown_types() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (int64[N] x, float l) => (float[N] y) { y = local.f(x, l) }
        <domain: "local", opset_import: ["" : 18]> f (a, b) => (c) { c = CastLike(a, b) }"""
    model, _ = run_passes(text, PASSES)
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["CastLike"]
