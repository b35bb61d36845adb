"""`sardonyx.export` and `sardonyx.optimize` take what torch's own exporters return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx

torch = pytest.importorskip("torch")
OUTPUT = "out.onnx"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + torch.nn.functional.gelu(self.fc(self.norm(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x)}


@pytest.fixture(scope="module")
def exported_program() -> Any:
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim.AUTO}}
    return torch.export.export(Net().eval(), (torch.randn(2, 5, 8),), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def onnx_program() -> Any:
    torch.manual_seed(0)
    names: dict[str, Any] = {"input_names": ["tokens"], "output_names": ["scores"], "dynamic_shapes": ({0: "batch"},)}
    return torch.onnx.export(Net().eval(), (torch.randn(2, 5, 8),), dynamo=True, verbose=False, **names)


def modules_of(model: ir.Model) -> set[str]:
    return {each.path for each in sardonyx.inspect(model).modules}


MODULES = {"layers.0", "layers.0.norm", "layers.0.fc", "layers.1", "layers.1.norm", "layers.1.fc", "head"}


def test_an_exported_program_is_exported_with_its_modules(exported_program: Any, tmp_path: Path) -> None:
    record = sardonyx.export(exported_program, output=tmp_path / OUTPUT)
    assert record.verdict is not None
    assert record.verdict.passed
    assert "PyTorch" in record.verdict.reference
    assert len({trial.dims["s77"] for trial in record.verdict.trials if trial.dims}) > 1  # the batch
    assert (record.coverage.direct, record.coverage.root) == (record.counts.nodes, 0)
    assert modules_of(ir.load(tmp_path / OUTPUT)) >= MODULES
    text = (tmp_path / OUTPUT).read_bytes()
    assert str(Path(__file__).parent).encode() not in text  # torch writes stack traces


def test_the_optimized_program_keeps_its_modules(exported_program: Any, tmp_path: Path) -> None:
    run = sardonyx.optimize(exported_program, tmp_path / OUTPUT)
    assert run.after.nodes < run.before.nodes
    assert modules_of(ir.load(tmp_path / OUTPUT)) >= MODULES
    assert any("in PyTorch" in note for note in run.notes)
    in_one = sardonyx.export(exported_program, optimize=True)
    assert in_one.optimized is not None
    assert in_one.optimized.after == run.after


@pytest.mark.parametrize("optimize", [False, True])
def test_an_onnx_program_keeps_the_names_of_its_user(onnx_program: Any, optimize: bool, tmp_path: Path) -> None:
    program = onnx_program
    before = program.model_proto.SerializeToString()
    if optimize:
        sardonyx.optimize(program, tmp_path / OUTPUT)
    else:
        sardonyx.export(program, output=tmp_path / OUTPUT)
    assert program.model_proto.SerializeToString() == before
    graph = onnx.load(tmp_path / OUTPUT).graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["tokens", "scores"]
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert modules_of(ir.load(tmp_path / OUTPUT)) >= MODULES


@pytest.fixture
def broken_program(onnx_program: Any) -> Iterator[Any]:
    """A program whose graph computes something else than the program that it was made from."""
    weight = onnx_program.model.graph.initializers["head.bias"]
    before = weight.const_value
    weight.const_value = ir.tensor(np.full(3, 7, np.float32), name=weight.name)
    yield onnx_program
    weight.const_value = before


def test_a_graph_that_differs_from_its_program_is_refused(broken_program: Any, tmp_path: Path) -> None:
    program = broken_program
    with pytest.raises(sardonyx.VerificationFailed, match="does not compute what the program does"):
        sardonyx.export(program, output=tmp_path / OUTPUT)
    with pytest.raises(sardonyx.VerificationFailed, match="does not compute what the program does in PyTorch"):
        sardonyx.optimize(program, tmp_path / OUTPUT)
    assert not (tmp_path / OUTPUT).exists()
    assert sardonyx.export(program, verify="off").verdict is None


def test_arguments_of_a_module_are_refused(exported_program: Any, onnx_program: Any) -> None:
    with pytest.raises(sardonyx.UsageError, match="dynamic changes nothing"):
        sardonyx.export(exported_program, dynamic="auto")
    with pytest.raises(sardonyx.UsageError, match="opset"):
        sardonyx.export(onnx_program, opset=19)
