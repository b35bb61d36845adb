"""`sardonyx compare` and `inspect --module` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.records.comparison import Comparison

Command = Callable[..., Any]


def _save(path: Path, *op_types: str) -> Path:
    names = ["x", *(f"v{i}" for i in range(1, len(op_types))), "y"]
    nodes = [
        helper.make_node(op_type, [names[i]], [names[i + 1]], f"/encoder/layer.{i}/{op_type}")
        for i, op_type in enumerate(op_types)
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return _save(tmp_path / "a.onnx", "Relu", "Neg"), _save(tmp_path / "b.onnx", "Relu", "Abs")


def test_compare_lists_the_differences(pair: tuple[Path, Path], command: Command) -> None:
    done = command("compare", *pair)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "2 → 2 nodes: 1 removed, 1 added, 0 moved, 0 changed"
    assert command("compare", *pair, "-q").out.count("\n") == 1
    record = Comparison.from_json(command("compare", *pair, "--json").out)
    assert [op.name for op in record.added] == ["/encoder/layer.1/Abs"]
    assert command("compare", *pair, "-q", "-v").code == 2
    assert command("compare", pair[0], pair[0].with_name("none.onnx")).code == 2


def test_the_exit_code_reports_differences_only_on_request(pair: tuple[Path, Path], command: Command) -> None:
    assert command("compare", *pair, "--exit-code").code == 3
    assert command("compare", pair[0], pair[0], "--exit-code").code == 0


def test_inspect_shows_one_module(pair: tuple[Path, Path], command: Command) -> None:
    done = command("inspect", pair[0], "--module", "encoder.layer.1")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "encoder.layer.1: 1 node, 0 parameters, 1 input, 1 output"
    assert json.loads(command("inspect", pair[0], "-m", "encoder.layer.1", "--json").out)["path"] == "encoder.layer.1"
    assert command("inspect", pair[0], "-m", "encoder.layer.1", "-q").out.count("\n") == 1
    wrong = command("inspect", pair[0], "-m", "encoder.layer.7")
    assert (wrong.code, wrong.out) == (2, "")
    assert "no module 'encoder.layer.7'" in wrong.err
