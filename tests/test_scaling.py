"""The work of `optimize` grows linearly with the length of a model.

The tests count calls, because seconds depend on the machine.
"""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
import scaling
from sardonyx.runtime import Session

KINDS = ["reshape", "transpose", "diamond-scaled", "integers", "rotate", "softmax", "size-square", "size-compare"]
GROWTH = 2.6  # for twice the length


def calls(model: onnx.ModelProto, folder: Path) -> int:
    """How many functions are called to optimize a model."""
    source = folder / "in.onnx"
    source.write_bytes(model.SerializeToString())
    profile = cProfile.Profile()
    profile.runcall(sardonyx.optimize, source, folder / "out.onnx", verify="off", force=True)
    return pstats.Stats(profile).total_calls  # pyright: ignore[reportAttributeAccessIssue] (missing in the stubs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_linear(kind: str, tmp_path: Path) -> None:
    calls(scaling.chain(kind, 2), tmp_path)  # imports
    assert calls(scaling.chain(kind, 120), tmp_path) < GROWTH * calls(scaling.chain(kind, 60), tmp_path)


def test_every_kind_of_chain_is_a_model() -> None:
    for kind in scaling.KINDS:
        Session(scaling.chain(kind, 3), threads=1)


@pytest.mark.slow
def test_a_long_chain_needs_no_deep_recursion(tmp_path: Path) -> None:
    """Of shared values and of sizes, each longer than the interpreter's stack."""
    for kind in ("diamond-relu", "size-divide"):
        calls(scaling.chain(kind, 600), tmp_path)


VALUE = helper.make_tensor_value_info


def nested_loops(depth: int) -> onnx.ModelProto:
    """Nested loops; the innermost makes its state longer in each iteration."""

    def body(level: int) -> onnx.GraphProto:
        nodes = [helper.make_node("Identity", [f"on{level}"], [f"go{level}"])]
        if level == depth:
            nodes.append(helper.make_node("Concat", [f"s{level}"] * 2, [f"r{level}"], axis=0))
        else:
            nodes.append(helper.make_node("Loop", ["trip", "true", f"s{level}"], [f"r{level}"], body=body(level + 1)))
        inputs = [VALUE(f"i{level}", TensorProto.INT64, []), VALUE(f"on{level}", TensorProto.BOOL, [])]
        outputs = [VALUE(f"go{level}", TensorProto.BOOL, []), VALUE(f"r{level}", TensorProto.FLOAT, None)]
        return helper.make_graph(nodes, "body", [*inputs, VALUE(f"s{level}", TensorProto.FLOAT, None)], outputs)

    constants = [numpy_helper.from_array(np.array(1), "trip"), numpy_helper.from_array(np.array(True), "true")]
    loop = helper.make_node("Loop", ["trip", "true", "x"], ["y"], body=body(1))
    inputs, outputs = [VALUE("x", TensorProto.FLOAT, ["N", 4])], [VALUE("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([loop], "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def nested_calls(depth: int) -> onnx.ModelProto:
    """Functions that each call the next one twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions: list[onnx.FunctionProto] = []
    for level in range(depth):
        ends = [("a", "b"), ("b", "c")]
        nodes = [helper.make_node(f"f{level + 1}", [one], [other], domain="own") for one, other in ends]
        nodes = nodes if level + 1 < depth else [helper.make_node("Relu", ["a"], ["c"])]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["c"], nodes, imports))
    call = helper.make_node("f0", ["x"], ["y"], domain="own")
    shapes = [VALUE(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    graph = helper.make_graph([call], "g", shapes[:1], shapes[1:])
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


@pytest.mark.parametrize("model", [nested_loops(12), nested_calls(20)], ids=["loops", "calls"])
def test_nesting_does_not_multiply_the_work(model: onnx.ModelProto, tmp_path: Path) -> None:
    assert calls(model, tmp_path) < 1_500_000  # two million bodies if each were visited
