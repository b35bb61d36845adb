"""`placement`: where the nodes of a model run, from the profile of a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.ir import device as devices
from sardonyx.runtime import sessions

FLOAT = {"device": ["float", "float,float"]}
PROFILE: dict[str, Any] = {
    "device": "toy",
    "runtime": "onnxruntime-toy 1.0",
    "provider": "ToyExecutionProvider",
    "machine": "none",
    "measured": "2026-01-01",
    "how": "by hand",
    "operators": {
        "Relu": {"6": {"device": ["float"]}, "14": {"device": ["float"], "fails": ["int64"]}},
        "Add": {"7": {"device": ["float,float"], "elsewhere": ["int64,int64"]}},
        "Shape": {"1": FLOAT},
        "Gather": {"1": {"device": ["int64,int64", "float,int64"]}},
        "Concat": {"1": {"device": ["int64", "float"]}},
        "Reshape": {"5": {"device": ["float,int64"]}},
        "ConstantOfShape": {"9": {"device": ["int64"]}},
        "Det": {"11": {"elsewhere": ["float"]}},
        "Softmax": {"13": {"elsewhere": ["float"]}},
        "Cast": {"13": {"device": ["float>float16"], "elsewhere": ["float>int64"]}},
        "ArgMax": {"13": {"depends": ["float"]}},
    },
    "depends": {
        "ArgMax 13 float": [["device", {"axis": 1}], ["elsewhere", {"axis": 1, "select_last_index": 1}]],
    },
}


@pytest.fixture
def toy(tmp_path: Path) -> str:
    """A profile of few operators."""
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(PROFILE))
    return str(path)


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("minus_one", TensorProto.INT64, [1], [-1]), helper.make_tensor("zero", 7, [1], [0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"/enc/{op}_{output}", **attributes)


def test_a_fallback_between_two_nodes_of_the_device_is_two_copies(toy: str) -> None:
    model = _model(_node("Relu", "x", "a"), _node("Softmax", "a", "d"), _node("Relu", "d", "y"))
    placed = sardonyx.placement(model, toy)
    assert (placed.nodes, placed.device_nodes, placed.fallback_nodes, placed.copies) == (3, 2, 1, 2)
    (away,) = placed.away
    assert (away.operator, away.types, away.where, away.nodes) == (
        "Softmax",
        ("float",),
        "elsewhere",
        ("/enc/Softmax_d",),
    )
    assert 0 < placed.away_flops < 1
    assert [(each.path, each.nodes, each.away) for each in placed.modules] == [("enc", 3, 1)]


def test_computations_of_shapes_are_no_fallback(toy: str) -> None:
    model = _model(
        _node("Shape", "x", "s"),
        _node("Gather", "s zero", "n"),
        _node("Concat", "n minus_one", "target", axis=0),
        _node("Reshape", "x target", "r"),
        _node("ConstantOfShape", "target", "zeros"),  # a kernel of the device that reads a size
        _node("Add", "r zeros", "y"),
    )
    placed = sardonyx.placement(model, toy)
    assert (placed.device_nodes, placed.host_nodes, placed.fallback_nodes, placed.copies) == (4, 2, 0, 0)


def test_the_version_of_the_operator_and_the_types_decide() -> None:
    profile = msgspec.convert(PROFILE, devices.Profile)
    assert profile.answer("Relu", 13, ("float",), {}) == "device"
    assert profile.answer("Relu", 13, ("int64",), {}) == "unknown"  # version 6 has no int64
    assert profile.answer("Relu", 17, ("int64",), {}) == "fails"
    assert (
        profile.answer("Add", 17, ("int64", "int64", ""), {}) == "elsewhere"
    )  # inputs left out at the end say nothing
    assert profile.answer("Add", 17, ("float",), {}) == "device"  # not measured, and all with a first float agree
    assert profile.answer("Add", 5, ("float", "float"), {}) == "unknown"
    assert profile.answer("Cast", 17, ("float",), {}, "float16") == "device"
    assert profile.answer("Cast", 17, ("float",), {}, "double") == "unknown"
    assert profile.answer("ArgMax", 17, ("float",), {"axis": 2}) == "device"
    assert profile.answer("ArgMax", 17, ("float",), {"axis": 2, "select_last_index": 1}) == "elsewhere"
    assert profile.answer("Nothing", 17, (), {}) == "unknown"


@pytest.mark.parametrize("device", devices.names())
def test_profiles_that_come_with_the_package_can_be_read(device: str) -> None:
    profile = devices.read_profile(device)
    assert profile.device == device
    assert profile.answer("MatMul", 17, ("float", "float"), {}) == "device"
    assert len(profile.operators) > 150


def test_openvino_refuses_what_its_profile_says() -> None:
    works = _model(_node("Relu", "x", "a"), _node("Softmax", "a", "y"))
    fails = _model(_node("Relu", "x", "a"), _node("Det", "a", "y"))
    assert sardonyx.placement(works, "openvino").unsupported_nodes == 0
    assert sardonyx.placement(fails, "openvino").unsupported_nodes == 1
    sessions.load(sessions.Runtime.OPENVINO, works)
    with pytest.raises(sardonyx.RuntimeFailure):
        sessions.load(sessions.Runtime.OPENVINO, fails)


def test_the_command_has_gates(toy: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_model(_node("Relu", "x", "a"), _node("Det", "a", "y")), path)
    shown = command("placement", str(path), toy)
    assert shown.code == 0
    assert "1 of 2 nodes do not run on toy" in shown.out
    assert "no kernel: falls back to the CPU" in shown.out
    assert command("placement", str(path), toy, "--fail-if", "fallback_nodes").code == 4
    assert command("placement", str(path), toy, "--fail-if", "unsupported_nodes").code == 0
    unknown = command("placement", str(path), "nothing")
    assert unknown.code == 2
    assert "known: " in unknown.err
