"""Definitions at their edges: empty, unsigned, negative, out of range. They agree with the runtime, or refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from exact.evaluation import numbers, same, value
from sardonyx.exact import Undecided
from sardonyx.exact.call import Invalid
from sardonyx.exact.evaluate import Evaluator
from sardonyx.runtime import Session

HUGE = np.array([2**63 + 7, 2**64 - 1, 5], np.uint64)
REALS = np.array([[-2.5, 0.0, 3.0, 0.5], [7.0, -0.5, -1.0, 2.0]], np.float32)
INTS = np.array([[-7, 5, 3, -4], [9, -1, 8, 2]], np.int64)
EDGES = {
    "division of large unsigned integers": ("uint64[3] x", "uint64 k = {3}", "Div(x, k)", HUGE),
    "division towards zero": ("int64[2, 4] x", "int64 k = {2}", "Div(x, k)", INTS),
    "division by a negative number": ("int64[2, 4] x", "int64 k = {-3}", "Div(x, k)", INTS),
    "the rest has the sign of the divisor": ("int64[2, 4] x", "int64 k = {-3}", "Mod(x, k)", INTS),
    "the rest has the sign of the dividend": ("int64[2, 4] x", "int64 k = {-3}", "Mod <fmod = 1> (x, k)", INTS),
    "the rest of numbers": ("float[2, 4] x", "float k = {-2}", "Mod <fmod = 1> (x, k)", REALS),
    "large unsigned integers as numbers": ("uint64[3] x", "", "Cast <to = 1> (x)", HUGE),
    "the least integer": ("int64[2, 4] x", "int64[1] a = {1}", "ReduceMin <keepdims = 0> (x, a)", INTS),
    "the largest integer": ("int64[2, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)", INTS),
    "the least number": ("float[2, 4] x", "int64[1] a = {1}", "ReduceMin <keepdims = 0> (x, a)", REALS),
    "the largest number": ("float[2, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)", REALS),
    "limits": ("float[2, 4] x", "float low = {-1}, float high = {2}", "Clip(x, low, high)", REALS),
    "a limit from above": ("float[2, 4] x", "float high = {0.5}", "Clip(x, , high)", REALS),
    "softmax of nothing": ("float[0, 4] x", "", "Softmax(x)", REALS[:0]),
    "the largest place": ("float[2, 4] x", "", "Hardmax(x)", REALS),
    "a function that is one at zero": ("float[2, 4] x", "", "Cos(x)", REALS),
    "a slice backwards to the front": (
        "float[2, 4] x", "int64[1] b = {-1}, int64[1] e = {-9}, int64[1] a = {1}", "Slice(x, b, e, a, b)", REALS,
    ),
    "a slice that ends at zero": (
        "float[2, 4] x", "int64[1] b = {3}, int64[1] e = {0}, int64[1] a = {1}, int64[1] s = {-1}",
        "Slice(x, b, e, a, s)", REALS,
    ),
    "a slice beyond both ends": (
        "float[2, 4] x", "int64[1] b = {-9}, int64[1] e = {9}, int64[1] a = {1}", "Slice(x, b, e, a)", REALS,
    ),
}  # fmt: skip


def model(port: str, constants: str, call: str) -> onnx.ModelProto:
    """One call."""
    given = f"<{constants}>" if constants else ""
    kind = "float" if "Cast" in call else port.partition("[")[0]
    head = '<ir_version: 10, opset_import: ["" : 18]>'
    proto = onnx.parser.parse_model(f"{head} agraph ({port}) => ({kind}[A] y) {given} {{ y = {call} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def exact(proto: onnx.ModelProto, array: np.ndarray) -> Any:
    """The result in exact arithmetic."""
    return Evaluator(proto, numbers()).run({"x": value(array)})[0]


@pytest.mark.parametrize("edge", EDGES)
def test_edges_agree_with_the_runtime(edge: str) -> None:
    port, constants, call, array = EDGES[edge]
    proto = model(port, constants, call)
    (expected,) = Session(proto, threads=1).run({"x": array})
    assert same(expected, exact(proto, array)), (expected, exact(proto, array))


@pytest.mark.parametrize("call", ["Div(k, x)", "Mod(k, x)"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_integers_are_not_divided_by_zero(call: str, kind: str) -> None:
    proto = model(f"{kind}[2] x", f"{kind} k = {{3}}", call)
    with pytest.raises(Invalid):
        exact(proto, np.array([1, 0], kind))


def test_the_largest_of_nothing_is_undecided() -> None:
    proto = model("float[0, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)")
    with pytest.raises(Undecided):
        exact(proto, REALS[:0])
