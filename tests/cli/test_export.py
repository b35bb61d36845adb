"""`sardonyx export` on the command line: real sources and every usage error."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

FACTORY = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.project(x)) + x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, x):
        return self.layers(x)

class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.min() > 0 else x - 3

class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, how: str = "add", scale: float = 2.0):
        self.count += 1
        x = self.drop(x) * self.count
        return x + scale if how == "add" else x * scale

def stateful():
    return Stateful()

def build():
    return Net()

def with_inputs():
    return Net(), torch.ones(3, 6)

def branching():
    return Branching(), torch.ones(2, 3)

def broken():
    raise ValueError("no weights today")
"""
TRACED = ("--exporter", "torchscript")
Command = Callable[..., Any]


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FACTORY)
    return path


def test_a_factory_is_exported_and_shown(command: Command, factory: Path, tmp_path: Path) -> None:
    result = command("export", f"{factory}:build", "-o", tmp_path / "net.onnx", *TRACED, "--dynamic", "auto")
    assert (result.code, result.err) == (0, "")
    assert "x=float32[2,6]" in result.out
    assert "0=batch" in result.out
    assert "same outputs as PyTorch on" in result.out.splitlines()[-1]
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_state_constants_and_training_mode_are_shown(command: Command, factory: Path, tmp_path: Path) -> None:
    source = (f"{factory}:stateful", "-o", tmp_path / "net.onnx", *TRACED)
    values = ("--input", "x=float32[2,6]", "--input", "how=mul", "--input", "scale=3")
    result = command("export", *source, *values)
    assert (result.code, result.err) == (0, "")
    assert "state: count_out is count of the next run; first values: 0" in result.out
    assert "fixed in the graph: how='mul', scale=3" in result.out
    assert "--training exports training mode" in result.out
    fixed = command("export", *source, *values, "--force", "--state", "fixed")
    assert "every run is a first call, because state is fixed: count" in fixed.out
    trained = command("export", *source, *values, "--force", "--training")
    assert (trained.code, "--verify off" in trained.err) == (3, True), trained.err


def test_json_is_the_record_and_nothing_else(command: Command, factory: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    result = command(
        "export",
        f"{factory}:with_inputs",
        "-o",
        tmp_path / "n.onnx",
        *TRACED,
        "--json",
        "--record",
        record,
        "--optimize",
    )
    document = json.loads(result.out)
    assert result.code == 0
    assert document["inputs"][0]["shape"] == [3, 6]
    assert document["verdict"]["passed"] is document["optimized"]["verdict"]["passed"] is True
    assert document["module"]["sha256"]
    assert document["optimized"]["source"]["sha256"]
    assert json.loads(record.read_text()) == document
    schema = json.loads((importlib.resources.files("sardonyx.records") / "schemas" / "export.schema.json").read_text())
    assert set(document) == set(schema["$defs"]["Export"]["properties"])
    assert msgspec.json.decode(result.out)


def test_example_inputs_can_be_given_by_shape_and_by_file(command: Command, factory: Path, tmp_path: Path) -> None:
    first = command("export", f"{factory}:build", "-o", tmp_path / "a.onnx", *TRACED, "--input", "x=float32[5,6]")
    assert "x=float32[5,6]" in first.out
    np.savez(tmp_path / "x.npz", x=np.ones((4, 6), np.float32))
    second = command("export", f"{factory}:build", "-o", tmp_path / "b.onnx", *TRACED, "--inputs", tmp_path / "x.npz")
    assert "x=float32[4,6]" in second.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "is not a model source"),
        (["ftp:x"], 2, "'ftp:x'"),
        (["missing.py:build"], 2, "missing.py"),
        (["{net}:biuld"], 2, "did you mean build"),
        (["{net}:broken"], 2, "no weights today"),
        (["torchvision:resnet999"], None, "torchvision"),
        (["hf-config:BrtConfig"], 2, "BrtConfig"),
        (["hf-config:BertConfig?hiden_size=3"], 2, "hiden_size"),
        (["{net}:build", "--task", "text-classification"], 2, "a task selects"),
        (["{net}:build", "--input", "x=float32"], 2, "is not an input specification"),
        (["{net}:build", "--input", "x=floaty[2]"], 2, "floaty"),
        (["{net}:build", "--input", "y=float32[2,6]"], 2, "no input 'y'"),
        (["{net}:build", "--input", "x=float32[2,7]"], 2, "x"),
        (["{net}:build", "--input", "x=int64[2,6]"], 2, "x"),
        (["{net}:build", "--input", "y=3"], 2, "no input 'y'"),
        (["{net}:build", "--input", "x="], 2, "is not an input specification"),
        (["{net}:build", "--inputs", "nowhere.npz"], 2, "nowhere.npz"),
        (["{net}:build", "--dynamic", "x=batch"], 2, "is not a dynamic dim"),
        (["{net}:build", "--dynamic", "z:0=batch"], 2, "no input 'z'"),
        (["{net}:build", "--dynamic", "x:7=batch"], 2, "no axis 7"),
        (["{net}:build", "--with-past"], 2, "past_key_values"),
        (["{net}:build", "--for-generation"], 2, "does not generate tokens"),
        (["{net}:build", "--for-generation", "--with-past"], 2, "--for-generation and --with-past"),
        (["{net}:build", "--opset", "3"], 2, "--opset"),
        (["{net}:branching"], 3, "does not compute what the module does"),
        (["{net}:branching", "--exporter", "dynamo"], 1, "torch cannot export the model"),
    ],
)
def test_bad_input_gets_one_line_and_a_hint(
    command: Command, factory: Path, tmp_path: Path, arguments: list[str], code: int | None, message: str
) -> None:
    before = _files(tmp_path)
    filled = [argument.replace("{net}", str(factory)) for argument in arguments]
    extra = () if "--exporter" in filled else TRACED
    result = command("export", *filled, "-o", tmp_path / "out.onnx", *extra)
    assert result.code == (code if code is not None else result.code) != 0
    assert result.out == ""
    assert message in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert "Traceback" not in result.err
    assert _files(tmp_path) == before


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder without the bytecode that Python writes beside a factory."""
    return sorted(path for path in folder.iterdir() if path.name != "__pycache__")


def test_existing_files_are_kept(command: Command, factory: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_text("mine")
    result = command("export", f"{factory}:build", "-o", tmp_path / "net.onnx", *TRACED)
    assert (result.code, (tmp_path / "net.onnx").read_text()) == (1, "mine")
    forced = command("export", f"{factory}:build", "-o", tmp_path / "net.onnx", *TRACED, "-f", "-q")
    assert forced.code == 0
    assert len(forced.out.splitlines()) == 1


def test_the_record_does_not_take_the_place_of_the_model(command: Command, factory: Path, tmp_path: Path) -> None:
    same = tmp_path / "net.onnx"
    result = command("export", f"{factory}:build", "-o", same, "--record", same, "-f", *TRACED)
    assert result.code == 2
    assert "name the same file" in result.err
    assert not same.exists()


def test_a_full_disk_is_reported_and_leaves_nothing(command: Command, factory: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    result = command("export", f"{factory}:build", "-o", full / "net.onnx", *TRACED)
    assert result.code != 0
    assert len(result.err.strip().splitlines()) <= 2
