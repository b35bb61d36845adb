"""Consecutive clips are merged into one with the same result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.normalisations import constant
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.norms.merge_clips import MergeClips

PASSES = (MergeClips(),)
KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64}
BOUNDS = (None, "lowest", -math.inf, -6.0, -0.0, 0.0, 6.0, math.inf, "largest", math.nan)
Bound = float | str | None


def number(bound: Bound, dtype: type[np.floating]) -> np.ndarray | None:
    """A bound in a given type."""
    named = {"lowest": np.finfo(dtype).min, "largest": np.finfo(dtype).max}
    return None if bound is None else np.array(named.get(bound, bound) if isinstance(bound, str) else bound, dtype)


def chain_model(chain: list[str | tuple[Bound, Bound]], kind: str, opset: int) -> onnx.ModelProto:
    """A chain of Clips and Relus, and the reciprocal, which shows the sign of a zero."""
    dtype = KINDS[kind]
    element = onnx.TensorProto.DataType.Value(kind.upper())
    nodes, constants = [oh.make_node("Identity", ["x"], ["v0"])], list[onnx.TensorProto]()
    for place, one in enumerate(chain):
        inputs, attributes = [f"v{place}"], dict[str, Any]()
        if one != "Relu":
            for name, bound in zip(("min", "max"), one, strict=True):
                array = number(bound, dtype)
                inputs.append("" if array is None or opset < 11 else f"{name}{place}")
                if array is not None and opset < 11:
                    attributes[name] = float(array)
                elif array is not None:
                    constants.append(onnx.numpy_helper.from_array(array, inputs[-1]))
        inputs = inputs if opset >= 11 else inputs[:1]
        op_type = "Relu" if one == "Relu" else "Clip"
        nodes.append(oh.make_node(op_type, inputs, [f"v{place + 1}"], **attributes))
    last = f"v{len(chain)}"
    nodes += [oh.make_node("Identity", [last], ["y"]), oh.make_node("Reciprocal", [last], ["z"])]
    values = {name: oh.make_tensor_value_info(name, element, ["N"]) for name in "xyz"}
    graph = oh.make_graph(nodes, "clips", [values["x"]], [values["y"], values["z"]], constants)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)


def hostile(dtype: type[np.floating]) -> np.ndarray:
    """Both zeros, infinities and NaNs, the limits of the type and numbers around the bounds.

    There are enough for kernels that process four or more at once, with zeros in the remainder.
    """
    limits = np.finfo(dtype)
    small = [-np.inf, limits.min, -9, -6, -1, -limits.tiny, -0.0, 0.0, limits.tiny, 1, 6, 9, limits.max, np.inf]
    return np.array([*small * 5, np.nan, -np.nan, *small[5:8], *small[5:8]], dtype)


steps = st.one_of(st.just("Relu"), st.tuples(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS)))


@pytest.mark.slow
@settings(max_examples=150)
@given(
    chain=st.lists(steps, min_size=2, max_size=4),
    kind=st.sampled_from([*KINDS, "float"]),
    opset=st.sampled_from([10, 11, 12, 13, 18]),
)
def test_any_chain_keeps_every_bit(chain: list[str | tuple[Bound, Bound]], kind: str, opset: int) -> None:
    if kind != "float":  # the runtime supports the other types only in newer opsets
        opset = max(opset, 14)
    model = chain_model(chain, kind, opset)
    after, _ = run_passes(model, PASSES)
    bounds = [bound for one in chain if one != "Relu" for bound in one]
    zero = any(isinstance(bound, float) and (math.isnan(bound) or bound == 0) for bound in bounds)
    negative = "Relu" in chain and any(one[1] in ("lowest", -math.inf, -6.0) for one in chain)
    if kind != "float16" and not zero and not negative:  # otherwise all may become zeros of either sign
        assert len(op_types(after)) == 4, "one of them is left"
    for count in (1, 2, 3, 76):
        assert_same(model, after, feeds={"x": hostile(KINDS[kind])[-count:]})


def test_two_relus_become_a_relu() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) { a = Relu(x)  b = Relu(a)  y = Relu(b) }")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Relu"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize(("kind", "left"), [("double", ["Clip"]), ("float16", ["Relu", "Clip"])])
def test_other_float_types(kind: str, left: list[str]) -> None:
    """In half precision Relu turns -0.0 into 0.0, and Clip does not."""
    bounds = f"{constant(kind, 'low', '', -1)}, {constant(kind, 'high', '', 1.5)}"
    text = graph_text(f"agraph ({kind}[N] x) => ({kind}[N] y) <{bounds}> {{ a = Relu(x)  y = Clip(a, low, high) }}")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == left
    assert_same(text, after)


def test_integers_stay() -> None:
    text = graph_text(
        "agraph (int32[N] x) => (int32[N] y) <int32 two = {2}> { a = Relu(x)  y = Clip(a, , two) }", opset=18
    )
    assert op_types(run_passes(text, PASSES)[0]) == ["Relu", "Clip"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Clip(x, , high)  y = Relu(a)", "a bound is computed"),
        ("a = Relu(x)  b = Clip(a, one, two)  y = Add(a, b)", "read elsewhere"),
    ],
)
def test_near_misses_are_refused(body: str, reason: str) -> None:
    text = graph_text(
        f"agraph (float[N] x, float high) => (float[N] y) <float one = {{1}}, float two = {{2}}> {{ {body} }}"
    )
    after, log = run_passes(text, PASSES)
    assert len(op_types(after)) >= 2
    assert not log.events
    assert any(reason in each for each in reasons(log))
