"""Arithmetic on a Where between two numbers gives the same bits ahead of time as at run time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, op_types, outputs, reasons, run_passes
from sardonyx.passes.broadcasting.fold_where_branches import FoldWhereBranches

KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64}
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -3.7, 6e4, -1e4, 1e-7, np.inf, -np.inf])


def model(op_type: str, kind: str, numbers: tuple[float, float, float], flipped: bool) -> onnx.ModelProto:
    """op(Where(c, a, b), k), or with exchanged operands."""
    element = onnx.TensorProto.DataType.Value(kind.upper())
    constants = [
        onnx.numpy_helper.from_array(np.array(number, KINDS[kind]), name)
        for name, number in zip("abk", numbers, strict=True)
    ]
    nodes = [
        oh.make_node("Where", ["c", "a", "b"], ["w"]),
        oh.make_node(op_type, ["k", "w"] if flipped else ["w", "k"], ["y"]),
    ]
    chosen = oh.make_tensor_value_info("c", onnx.TensorProto.BOOL, ["N"])
    graph = oh.make_graph(nodes, "g", [chosen], [oh.make_tensor_value_info("y", element, ["N"])], constants)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    op_type=st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Max", "Min", "Min"]),
    kind=st.sampled_from(list(KINDS)),
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    flipped=st.booleans(),
)
def test_the_same_bits(op_type: str, kind: str, numbers: tuple[float, float, float], flipped: bool) -> None:
    before = model(op_type, kind, numbers, flipped)
    after, log = run_passes(before, (FoldWhereBranches(),))
    refused = "the sign of a zero may change" in reasons(log)
    assert op_types(after) == (["Where", op_type] if refused else ["Where"])
    assert not refused or 0 in numbers or op_type in ("Mul", "Div"), "only a zero or an underflow has a sign to lose"
    assert_same(before, after, feeds={"c": np.arange(37) % 3 == 0})


@pytest.mark.parametrize("number", [np.nan, -np.nan])
def test_not_a_number_passes_through(number: float) -> None:
    for op_type in ("Max", "Min", "Add"):
        before = model(op_type, "float", (1.0, number, 0.0), False)
        after, _ = run_passes(before, (FoldWhereBranches(),))
        assert op_types(after) == ["Where"]
        wanted, got = (outputs(each, {"c": np.array([True, False])}) for each in (before, ir.to_proto(after)))
        np.testing.assert_array_equal(wanted, got)
