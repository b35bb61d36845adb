"""`sardonyx extract`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.conftest import Result
from sardonyx.records.export import Extraction
from sardonyx.records.provenance import MODULE_PATH, MODULE_PATHS

Command = Callable[..., Result]


def node(op: str, reads: list[str], makes: str, path: str, *others: str) -> onnx.NodeProto:
    made = helper.make_node(op, reads, [makes], name=makes)
    made.metadata_props.add(key=MODULE_PATH, value=path)
    if others:
        made.metadata_props.add(key=MODULE_PATHS, value=json.dumps(others))
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers; the second one's parts are fused into one node."""
    nodes = [
        node("Mul", ["x", "w"], "a", "layer.0"),
        node("Relu", ["a"], "b", "layer.0.act"),
        node("Mul", ["b", "w"], "y", "layer.1", "layer.1.left", "layer.1.right"),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.array([1, -2, 3], np.float32), "w")],
    )
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_the_boundary_and_the_verification_are_shown(command: Command, model: Path) -> None:
    result = command("extract", model, "--module", "layer.0")
    assert result.code == 0
    assert "input   x     float  [n, 3]  model input" in result.out
    assert "output  b     float  [n, 3]  layer.0.act" in result.out
    assert "Against the whole model" in result.out
    written = model.parent / "two.layer.0.onnx"
    assert result.out.splitlines()[-1].startswith("layer.0: 2 nodes, 1 input, 1 output, ")
    assert result.out.splitlines()[-1].endswith(
        f"same outputs as the whole model on 7 trials (bit for bit) → {written}"
    )
    onnx.checker.check_model(written, full_check=True)


def test_a_wider_extraction_gives_its_reason_and_exact_refuses_it(
    command: Command, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "left.onnx"
    refused = command("extract", model, "-m", "layer.1.left", "-o", output, "--exact")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        "error: layer.1.left cannot be extracted exactly: y also does the work of other modules"
    )
    assert not output.exists()
    result = command("extract", model, "-m", "layer.1.left", "-o", output)
    assert "wider than layer.1.left, because these nodes also do the work of other modules: y" in result.out
    assert "wider than layer.1.left" in result.out.splitlines()[-1]


def test_json_is_the_record(command: Command, model: Path) -> None:
    result = command("extract", model, "-m", "/layer/1", "--json", "-o", model.parent / "one.onnx")
    record = Extraction.from_json(result.out)
    assert (record.path, record.inputs[0].name, record.inputs[0].module) == ("layer.1", "b", "layer.0.act")
    assert record.verdict is not None
    assert record.verdict.passed


def test_quiet_is_one_sentence(command: Command, model: Path) -> None:
    result = command("extract", model, "-m", "layer.0", "-q", "--verify", "off")
    assert len(result.out.splitlines()) == 1
    assert "not verified" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (("-m", "layer.3"), 2, "there is no module 'layer.3'", "did you mean layer.1 or layer.0"),
        (("-m", "layer.*"), 2, "names 2 modules where one is needed", "one of layer.0, layer.1"),
        (("-m", "layer.0", "--call", "1"), 2, "layer.0 has no call 1: it was called once", "calls count from 0"),
        (("-m", "layer.0", "--verify", "off", "--live", "a.py:b"), 2, "contradict each other", "give one of them"),
        (("-m", "layer.0", "--task", "t"), 2, "--task chooses the head of a --live", "give the --live too"),
        (("-m", "layer.0", "-o", "SELF"), 2, "--output is the model itself", "choose another name"),
        (("-m", "layer.0", "--live", "nothing"), 2, "'nothing' is not a model source", "forms:"),
        ((), 2, "Missing option '--module'", "sardonyx extract --help"),
    ],
)
def test_bad_requests_get_one_line_and_a_hint(
    command: Command, model: Path, arguments: tuple[str, ...], code: int, error: str, hint: str
) -> None:
    before = set(model.parent.iterdir())
    result = command("extract", model, *(model if each == "SELF" else each for each in arguments))
    assert (result.code, result.out) == (code, "")
    assert error in result.err.splitlines()[0]
    assert hint in result.err.splitlines()[1]
    assert set(model.parent.iterdir()) == before


def live_file(folder: Path, weight: str) -> str:
    """A module from a file that computes the same as the model."""
    path = folder / "live.py"
    path.write_text(
        textwrap.dedent(f"""
        import torch

        class Layer(torch.nn.Module):
            def __init__(self, act):
                super().__init__()
                if act:
                    self.act = torch.nn.ReLU()
                self.w = torch.tensor({weight})

            def forward(self, x):
                return self.act(x * self.w) if hasattr(self, "act") else x * self.w

        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.ModuleList([Layer(True), Layer(False)])

            def forward(self, x):
                return self.layer[1](self.layer[0](x))

        def make():
            return Two(), torch.tensor([[1.0, 2.0, -3.0], [0.5, -1.0, 2.0]])
        """)
    )
    return f"{path}:make"


def test_a_source_gives_the_live_module(command: Command, model: Path, tmp_path: Path) -> None:
    source = live_file(tmp_path, "[1.0, -2.0, 3.0]")
    result = command("extract", model, "-m", "layer.0", "--live", source)
    assert result.code == 0, result.err
    assert "Against the live module" in result.out
    assert (
        result.out.splitlines()[-1].split(" → ")[0].endswith("same outputs as the live module on 1 trial (bit for bit)")
    )


def test_a_source_that_computes_something_else_fails_verification(
    command: Command, model: Path, tmp_path: Path
) -> None:
    source = live_file(tmp_path, "[1.0, -2.0, 4.0]")
    result = command("extract", model, "-m", "layer.0", "--live", source, "-o", tmp_path / "out.onnx")
    assert (result.code, result.out) == (3, "")
    assert "does not compute what the live module layer.0 computes" in result.err
    assert not (tmp_path / "out.onnx").exists()


def test_a_source_with_other_weights_is_distinguished_from_another_computation(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        textwrap.dedent("""
        import torch

        def build():
            return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)), torch.ones(3, 4)

        def other_norm():
            module, inputs = build()
            with torch.no_grad():
                module[2].bias += 1
            return module, inputs
        """)
    )
    model = tmp_path / "net.onnx"
    assert command("export", f"{tmp_path}/net.py:build", "-o", model, "--seed", "5").code == 0
    cut = ("extract", model, "-m", "2", "-o", tmp_path / "cut.onnx", "--live")
    result = command(*cut, f"{tmp_path}/net.py:build", "--seed", "6")
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines()[0] == (
        "error: the live model has other weights than the file: '0.bias' and 3 more differ"
    )
    assert "--seed" in result.err.splitlines()[1]
    result = command(*cut, f"{tmp_path}/net.py:other_norm", "--seed", "5")
    assert "the live model has other weights than the file: '2.bias' differs" in result.err
    result = command(*cut, f"{tmp_path}/net.py:build", "--seed", "5", "--dtype", "float16")
    assert result.code == 2
    assert result.err.splitlines() == [
        "error: the live model is float16 and the file is float32: '0.bias'",
        "hint: give --dtype float32, or convert the live model; nothing was written",
    ]
    assert command(*cut, f"{tmp_path}/net.py:build", "--seed", "5").code == 0
