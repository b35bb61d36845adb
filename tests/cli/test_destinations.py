"""Outputs that cannot be written are an error before the work; what is kept of a replaced model is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from sardonyx.ir import io

Command = Callable[..., Any]

MODEL = '<ir_version: 10, opset_import: ["" : 18]> agraph (float[2] x) => (float[2] y) { s = Neg(x)  y = Identity(s) }'


@pytest.mark.parametrize(
    ("verb", "other"), [("optimize", "--output"), ("bench", "--svg"), ("profile", "--svg"), ("analyze", "--svg")]
)
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("folder", "is a folder"),
        ("mine.json", "exists"),
        ("nowhere/record.json", "there is no folder"),
        ("/proc/record.json", "cannot be written"),  # a folder in which no file can be created, even by root
        ("/dev/full", "is a device"),
    ],
)
def test_a_record_that_cannot_be_written_leaves_no_output(
    verb: str, other: str, record: str, message: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if record.startswith("/") and not os.path.exists(os.path.dirname(record)):
        pytest.skip("not on this system")
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "model.onnx")
    Path("folder").mkdir()
    Path("mine.json").write_text("mine")
    force = ["--force"] if record == "/dev/full" else []
    failed = command(verb, "model.onnx", other, "result", "--record", record, *force)
    assert (failed.code, failed.out) == (1, "")
    assert message in failed.err
    assert sorted(os.listdir()) == ["folder", "mine.json", "model.onnx"]
    assert Path("mine.json").read_text() == "mine"


def layer() -> onnx.ModelProto:
    """A model with a module `fc` and a weight that is stored beside it."""
    weight = np.linspace(-1, 1, 64 * 128, dtype=np.float32).reshape(64, 128)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="/fc/MatMul"),
            helper.make_node("Relu", ["h"], ["y"], name="/act/Relu"),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 64])],
        [helper.make_tensor_value_info("y", 1, ["batch", 128])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["optimize"], ["quantize", "--to", "int8"], ["adopt"], ["extract", "--module", "fc", "--verify", "off"]],
    ids=lambda words: words[0],
)
def test_data_that_another_model_uses_is_kept_and_named(
    words: list[str], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that writes a model over another one."""
    monkeypatch.chdir(tmp_path)
    io.save(io.from_proto(layer()), "model.onnx", external=True)
    Path("with_past.onnx").write_bytes(Path("model.onnx").read_bytes())
    before = onnx.load("with_past.onnx")
    done = command(words[0], "with_past.onnx", "-o", "model.onnx", "--force", *words[1:])
    assert done.code == 0, done.err
    note = "kept model.onnx.data, a data file of the replaced model: with_past.onnx uses it"
    assert note in " ".join(done.out.split())
    assert onnx.load("with_past.onnx") == before
    onnx.load("model.onnx")
    assert sorted(os.listdir()) == ["model.onnx", "model.onnx.1.data", "model.onnx.data", "with_past.onnx"]
