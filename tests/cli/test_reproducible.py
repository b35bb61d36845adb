"""The same command on the same input writes the same bytes, which say how they were made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx.parser
import pytest

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y, float[3,2] z) <float[3,3] w = {1,2,3,4,5,6,7,8,9}> {
  a = Transpose (x) b = Transpose (a) c = Identity (b) d = MatMul (c, w) e = MatMul (b, w)
  f = Add (d, e) g = Sigmoid (f) h = Mul (f, g) y = Relu (h) z = Transpose (h)
}
"""
FACTORY = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)), torch.ones(3, 4)
"""


def _run(folder: Path, hash_seed: str, *arguments: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "sardonyx", *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def _metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.mark.medium
def test_two_runs_in_separate_processes_are_byte_equal(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    for seed, name in (("1", "a.onnx"), ("2", "b.onnx")):
        _run(tmp_path, seed, "optimize", "m.onnx", "-o", name, "--skip", "fuse-gemm-activation", "--quiet")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    metadata = _metadata(tmp_path / "a.onnx")
    assert metadata["sardonyx.version"] == version("sardonyx")
    options = {"seed": 0, "skip": ["fuse-gemm-activation"], "target": "portable", "verify": "end"}
    assert json.loads(metadata["sardonyx.options"]) == {"optimize": options}


@pytest.mark.slow
def test_two_exports_are_byte_equal_and_name_both_commands(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    for seed, name in (("1", "a.onnx"), ("2", "b.onnx")):
        _run(tmp_path, seed, "export", "net.py:build", "-o", name, "--exporter", "torchscript", "--optimize", "--quiet")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    options = json.loads(_metadata(tmp_path / "a.onnx")["sardonyx.options"])
    assert options["export"]["exporter"] == "torchscript"
    assert options["optimize"]["target"] == "portable"
    assert str(tmp_path) not in json.dumps(options)
