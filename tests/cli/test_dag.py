"""`sardonyx dag`: the document is written to the given place and overwrites nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from reporting.sample_run import sample_run
from sardonyx.records.inspection import HierarchyDag
from sardonyx.records.run import NodeRef

Command = Callable[..., Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "/encoder/layer.0/Relu"),
        helper.make_node("Neg", ["a"], ["y"], "/head\x1b[31m/Neg"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_the_document_alone_goes_to_standard_output(model: Path, command: Command) -> None:
    done = command("dag", model)
    assert (done.code, done.err) == (0, "")
    record = HierarchyDag.from_json(done.out)
    assert record.modules["/encoder/layer/0"].nodes == ("/encoder/layer.0/Relu",)
    only = json.loads(command("dag", model, "--module", "encoder.*").out)
    assert list(only["modules"]) == ["/encoder/layer", "/encoder/layer/0"]


def test_a_file_is_written_in_every_format(model: Path, command: Command) -> None:
    for form in ("json", "graphml", "model-explorer", "mermaid"):
        output = model.with_name(f"out.{form}")
        done = command("dag", model, "--format", form, "-o", output)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"5 modules, 2 operations, 0 initializers → {output}\n"
    assert networkx.read_graphml(model.with_name("out.graphml")).number_of_edges() == 1
    assert json.loads(model.with_name("out.model-explorer").read_text())["graphs"][0]["nodes"]
    chart = model.with_name("out.mermaid").read_text()
    assert chart.splitlines()[1:3] == ['  n0[["encoder.layer.0 · 1"]]', '  n1[["head#92;x1b#91;31m · 1"]]']
    assert "  n0 --> n1\n" in chart
    assert command("dag", model, "-o", model.with_name("quiet.json"), "-q").out == ""


def test_nothing_is_overwritten_without_force_and_the_model_never(model: Path, command: Command) -> None:
    output = model.with_name("mine.json")
    output.write_text("mine")
    before = model.read_bytes()
    refused = command("dag", model, "-o", output)
    assert (refused.code, output.read_text()) == (1, "mine")
    assert "--force" in refused.err
    assert command("dag", model, "-o", output, "-f").code == 0
    assert HierarchyDag.from_json(output.read_bytes()).operations
    assert command("dag", model, "-o", model, "-f").code == 2
    assert model.read_bytes() == before


def test_a_misspelled_name_gets_a_suggestion(model: Path, command: Command) -> None:
    output = model.with_name("out.json")
    wrong = command("dag", model, "--module", "encoder.layr", "-o", output)
    assert (wrong.code, wrong.out, output.exists()) == (2, "", False)
    assert "no module 'encoder.layr'" in wrong.err
    assert "encoder.layer" in wrong.err
    assert command("dag", model.with_name("none.onnx")).code == 2
    assert command("dag", model, "--format", "svg").code == 2


def _record(model: Path, source: Path) -> Path:
    """A run that replaced the first node of the model."""
    run = sample_run()
    event = replace(run.events[0], before=(NodeRef("/encoder/layer.0/Relu", "Relu"),))
    path = model.with_name("run.json")
    path.write_bytes(replace(run, source=replace(run.source, path=str(source)), events=(event,)).to_json())
    return path


def test_data_of_nodes_are_written_beside_the_graph_of_model_explorer(model: Path, command: Command) -> None:
    output, data = model.with_name("m.json"), model.with_name("m.passes.json")
    words = ("dag", model, "--format", "model-explorer", "-o", output, "--node-data", _record(model, model))
    done = command(*words)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.endswith(f" → {output}, {data}")
    assert second == f"open with: model-explorer {output} --node_data_paths {data}"
    assert list(json.loads(data.read_text())["model"]["results"]) == ["/encoder/layer.0/Relu"]
    output.unlink()
    assert command(*words).code == 1  # the data exist
    assert not output.exists()


def test_data_of_nodes_need_the_format_a_file_and_a_record_of_the_model(model: Path, command: Command) -> None:
    other = _record(model, model.with_name("other.onnx"))
    assert command("dag", model, "--node-data", other).code == 2
    assert command("dag", model, "--format", "model-explorer", "--node-data", other).code == 2
    refused = command("dag", model, "--format", "model-explorer", "-o", model.with_name("m.json"), "--node-data", other)
    assert refused.code == 2
    assert "there are no data of the nodes of" in refused.err
    assert not model.with_name("m.json").exists()
