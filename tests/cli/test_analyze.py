"""`sardonyx analyze` and `sardonyx decompose` from the command line: what they print, write, refuse and exit with."""

from __future__ import annotations

import csv
import importlib.resources
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import sardonyx
from cli.conftest import Result
from reporting.sample_analysis import sample_analysis
from sardonyx.records.analysis import Analysis
from sardonyx.records.input_specs import DynamicRequest

Command = Callable[..., Result]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,seq,8] x) => (float[batch,seq,4] y) { a = Relu (x) y = MatMul (a, w) }
"""
SMALLER = MODEL.replace("a = Relu (x) y = MatMul (a, w)", "y = MatMul (x, w)")
FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]

def build():
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 5, 16)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, text in (("m.onnx", MODEL), ("smaller.onnx", SMALLER)):
        proto = onnx.parser.parse_model(text)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w"))
        onnx.save(proto, tmp_path / name)
    return tmp_path / "m.onnx"


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FACTORY, encoding="utf-8")
    return f"{tmp_path / 'net.py'}:build"


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    """A stub of the verb, and the arguments of its calls."""
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def answer(*args: object, **kwargs: object) -> Analysis:
        asked.append((args, kwargs))
        return sample_analysis()

    monkeypatch.setattr(sardonyx, "analyze", answer, raising=False)
    return asked


def test_a_file_is_shown_with_its_assumed_sizes(command: Command, model: Path) -> None:
    result = command("analyze", model)
    assert (result.code, result.err) == (0, "")
    assert "assumed sizes of dynamic dimensions: batch=1, seq=128; --size NAME=N sets one" in result.out
    assert result.out.splitlines()[-1].startswith("2 operations, 9.2 k flops, ")
    assert "macs = 32·batch·seq" in command("analyze", model, "-v").out


def test_given_sizes_are_used(command: Command, model: Path) -> None:
    record = json.loads(command("analyze", model, "--size", "batch=3", "--size", "seq=10", "--json").out)
    assert record["sizes"] == {"batch": 3, "seq": 10}
    assert record["forms"][0]["work"]["macs"] == 3 * 10 * 8 * 4


def test_two_files_are_shown_side_by_side(command: Command, model: Path) -> None:
    result = command("analyze", model, model.with_name("smaller.onnx"), "--format", "csv")
    whole = [line for line in csv.DictReader(io.StringIO(result.out)) if line["scope"] == "model"]
    assert [(line["form"], line["operations"], line["macs"]) for line in whole] == [
        ("m.onnx", "2", "4096"),
        ("smaller.onnx", "1", "4096"),
    ]


def test_json_matches_the_published_schema(command: Command, model: Path) -> None:
    result = command("analyze", model, "--json")
    schema = importlib.resources.files("sardonyx.records") / "schemas" / "analysis.schema.json"
    jsonschema.validate(json.loads(result.out), json.loads(schema.read_text(encoding="utf-8")))
    assert Analysis.from_json(result.out).forms[0].name == "m.onnx"


def test_a_gate_that_is_true_exits_4_after_the_output(command: Command, model: Path) -> None:
    passed = command("analyze", model, "-q", "--fail-if", "peak_mb>1", "--fail-if", "operations>2")
    assert passed.code == 0
    failed = command("analyze", model, "-q", "--fail-if", "peak_bytes>100", "--fail-if", "operations>2")
    assert failed.code == 4
    assert failed.out == passed.out
    assert "peak_bytes>100" in failed.err
    assert "operations>2" not in failed.err


def test_plot_and_record_are_written(command: Command, model: Path) -> None:
    svg, record = model.with_name("memory.svg"), model.with_name("record.json")
    assert command("analyze", model, "-q", "--svg", svg, "--record", record).code == 0
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert Analysis.from_json(record.read_bytes()).sources[0].label == str(model)
    again = command("analyze", model, "-q", "--svg", svg)
    assert (again.code, again.out) == (1, "")
    assert command("analyze", model, "-q", "--svg", svg, "--force").code == 0


def test_every_option_reaches_the_verb(
    command: Command, staged: list[tuple[tuple[object, ...], dict[str, object]]]
) -> None:
    options = [
        "--task",
        "T",
        "--input",
        "x=float32[2,3]",
        "--dynamic",
        "auto",
        "--seed",
        "7",
    ]
    assert command("analyze", "hf-config:X", *options).code == 0
    ((args, kwargs),) = staged
    assert args == ("hf-config:X",)
    assert (kwargs["task"], kwargs["seed"], kwargs["sizes"]) == ("T", 7, None)
    inputs, dynamic = kwargs["inputs"], kwargs["dynamic"]
    assert isinstance(inputs, dict)
    assert str(inputs["x"]) == "x=float32[2,3]"
    assert isinstance(dynamic, DynamicRequest)
    assert dynamic.auto


def test_depth_and_format_of_the_page(command: Command, staged: list[object]) -> None:
    shallow = command("analyze", "hf-config:X", "--depth", "0").out
    assert "layer.0…2" not in shallow
    assert "layer.0…2 ×3" in command("analyze", "hf-config:X", "--depth", "1").out
    assert command("analyze", "hf-config:X", "--format", "markdown").out.startswith("# file.py:build\n")
    assert command("analyze", "hf-config:X", "-q").out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "not a model source"),
        (["missing.onnx"], 2, "missing.onnx"),
        (["m.onnx", "--fail-if", "speed>3"], 2, "speed"),
        (["m.onnx", "--fail-if", "peak_mb"], 2, "peak_mb"),
        (["m.onnx", "--size", "seq"], 2, "DIM=N"),
        (["m.onnx", "--size", "length=3"], 2, "dynamic dimensions: batch, seq"),
        (["m.onnx", "--input", "x=float32[2]"], 2, "ONNX model takes no inputs"),
        (["m.onnx", "--json", "--format", "csv"], 2, "--format"),
        (["m.onnx", "--svg", "nowhere/x.svg"], 1, "no folder"),
        (["m.onnx", "--svg", "x", "--record", "x"], 2, "same file"),
        (["broken.onnx"], 1, "broken.onnx"),
        (["outside.onnx"], 1, "gone.bin"),
        (["net.py:build", "m.onnx"], 2, "side by side"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    command: Command, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(model.parent)
    Path("broken.onnx").write_bytes(b"not a model")
    _without_its_data(model, Path("outside.onnx"))
    before = sorted(Path().iterdir())
    refused = command("analyze", *arguments)
    assert (refused.code, refused.out) == (code, "")
    assert refused.err.startswith("error: ")
    assert message in refused.err
    assert refused.err.count("\n") <= 2
    assert sorted(Path().iterdir()) == before


def _without_its_data(model: Path, path: Path) -> None:
    onnx.save(
        onnx.load(model),
        path,
        save_as_external_data=True,
        location="gone.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    path.with_name("gone.bin").unlink()


def test_a_torch_model_is_decomposed_into_a_file(command: Command, source: str, tmp_path: Path) -> None:
    import torch

    output = tmp_path / "net.safetensors"
    result = command("decompose", source, "-o", output)
    assert (result.code, result.err) == (0, "")
    assert "1 attention decomposed" in result.out.splitlines()[-1]
    namespace: dict[str, Any] = {}
    exec(FACTORY, namespace)
    model, x = namespace["build"]()
    torch.testing.assert_close(sardonyx.load_decomposed(output)(x), model(x))
    refused = command("decompose", source, "-o", output)
    assert (refused.code, refused.out) == (1, "")
    record = json.loads(command("decompose", source, "--json").out)
    schema = importlib.resources.files("sardonyx.records") / "schemas" / "decomposed.schema.json"
    jsonschema.validate(record, json.loads(schema.read_text(encoding="utf-8")))
    assert record["attentions"][0]["roles"]["softmax"] == 1
    assert record["nodes"] > record["nodes_before"]
