"""A cast that preserves every value is skipped before another cast."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.layout.merge_casts import MergeCasts

PASSES = (MergeCasts(),)
KINDS = ("bool", "uint8", "uint32", "uint64", "int8", "int32", "int64", "float16", "float", "double")


def number(kind: str) -> int:
    """The number of an element type."""
    return int(onnx.TensorProto.DataType.Value(kind.upper()))


def edges(kind: str) -> np.ndarray:
    """Values at the limits of a type and around the limits of narrower types."""
    dtype = oh.tensor_dtype_to_np_dtype(number(kind))
    if dtype == np.bool_:
        return np.array([False, True])
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        rough = [0.0, -0.0, 1 / 3, -2.5, 2049.0, 65504.0, limits.max, limits.min, limits.tiny, np.inf, np.nan]
        with np.errstate(all="ignore"):
            return np.array(rough, dtype)
    limits = np.iinfo(dtype)
    around = [
        sign * 2**bits + step for bits in (0, 7, 8, 11, 15, 16, 24, 31, 53) for sign in (1, -1) for step in (-1, 0, 1)
    ]
    whole = [limits.min, limits.max, *(value for value in around if limits.min <= value <= limits.max)]
    return np.array(whole, dtype)


@pytest.mark.parametrize("source", KINDS)
def test_skipped_casts_preserve_every_value(source: str) -> None:
    """For every pair of types, if the pass acts, the runtime gives the same bits at the limits."""
    merged = 0
    for through in KINDS:
        for to in KINDS:
            dtype = oh.tensor_dtype_to_np_dtype(number(source))
            text = graph_text(f"""agraph ({source}[N] x) => ({to}[N] y) {{
                a = Cast <to = {number(through)}> (x)  b = Cast <to = {number(to)}> (a)  y = Identity(b) }}""")
            model, log = run_passes(text, PASSES)
            if log.events:
                merged += 1
                assert op_types(model).count("Cast") == (0 if to == source else 1)
                assert_same(text, model, feeds={"x": edges(source).astype(dtype)})
    assert merged or source in ("double", "uint64", "int64")


@pytest.mark.parametrize(
    ("source", "through", "to", "left"),
    [
        ("int32", "int64", "float", 1),
        ("bool", "float", "bool", 0),
        ("bool", "int64", "float", 1),
        ("float", "double", "float", 0),
        ("float16", "float", "float16", 0),
        ("float", "float16", "float", 2),
        ("int64", "int32", "int64", 2),
        ("int64", "float", "int64", 2),
        ("int32", "float", "double", 2),
        ("uint8", "int8", "int32", 2),
        ("int8", "uint8", "int32", 2),
        ("float", "double", "int32", 2),
        ("bfloat16", "float", "double", 1),
    ],
)
def test_known_pairs(source: str, through: str, to: str, left: int) -> None:
    text = graph_text(f"""agraph ({source}[N] x) => ({to}[N] y) {{
        a = Cast <to = {number(through)}> (x)  b = Cast <to = {number(to)}> (a)  y = Identity(b) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model).count("Cast") == left


def test_an_intermediate_value_that_others_read() -> None:
    text = graph_text("""agraph (int32[N] x) => (float[N] y, int64[N] z, int32[N] u) {
        a = Cast <to = 7> (x)  y = Cast <to = 1> (a)  z = Neg(a)  b = Cast <to = 6> (a)  u = Neg(b) }""")
    model, log = run_passes(text, PASSES)
    assert op_types(model).count("Cast") == 2  # the cast back to int32 is still skipped
    assert "the value in between is read elsewhere" in reasons(log)
    assert_same(text, model)
