"""`sardonyx adopt`: module names of a foreign file become tags, and the record gives coverage and evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.records import provenance as p
from sardonyx.records.inspection import Adoption, Inspection

Command = Callable[..., Any]


def _write(path: Path, *nodes: onnx.NodeProto) -> Path:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def _paths(path: Path) -> list[str]:
    return [{e.key: e.value for e in node.metadata_props}[p.MODULE_PATH] for node in onnx.load(path).graph.node]


@pytest.fixture
def scoped(tmp_path: Path) -> Path:
    return _write(
        tmp_path / "scoped.onnx",
        helper.make_node("Neg", ["x"], ["a"], "/layer1/layer1.0/conv1/Neg"),
        helper.make_node("Abs", ["a"], ["b"], "/layer1/layer1.0/layer1.0.1/Abs"),
        helper.make_node("Exp", ["b"], ["c"], "unnamed"),
        helper.make_node("Sin", ["c"], ["y"], "/head/head/Sin"),
    )


def test_scoped_names_become_tags_and_the_rest_inherits(scoped: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "tagged.onnx"
    done = command("adopt", scoped, "-o", output)
    assert (done.code, done.err) == (0, "")
    assert _paths(output) == ["layer1.0.conv1", "layer1.0.1", "head.head", "head.head"]
    assert "3 direct, 1 inherited, 0 at the root" in done.out
    assert "3 from scoped names" in done.out
    assert done.out.endswith(f"4 of 4 nodes with a module → {output}\n")
    again = sardonyx.adopt(output)
    assert again.evidence == {"tags": 4}
    assert (again.coverage.direct, again.coverage.inherited) == (3, 1)


def test_json_is_the_record_and_fits_its_schema(scoped: Path, command: Command) -> None:
    done = command("adopt", scoped, "--json")
    record = Adoption.from_json(done.out)
    jsonschema.validate(json.loads(done.out), Adoption.json_schema())
    assert (record.output, record.nodes, record.modules) == (None, 4, 3)
    assert not record.attributes


def test_without_an_output_nothing_is_written(scoped: Path, tmp_path: Path, command: Command) -> None:
    before = scoped.read_bytes()
    done = command("adopt", scoped, "-q")
    assert done.out == "4 of 4 nodes with a module, nothing written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["scoped.onnx"]
    assert scoped.read_bytes() == before


def test_nothing_is_overwritten_without_force(scoped: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "mine.onnx"
    output.write_text("mine")
    refused = command("adopt", scoped, "-o", output)
    assert (refused.code, output.read_text()) == (1, "mine")
    assert "--force" in refused.err
    assert command("adopt", scoped, "-o", output, "-f").code == 0
    assert _paths(output)
    assert command("adopt", tmp_path / "none.onnx").code == 2


def test_a_file_without_module_names_has_no_coverage(tmp_path: Path, command: Command) -> None:
    silent = _write(
        tmp_path / "silent.onnx",
        helper.make_node("Neg", ["x"], ["a"], "one"),
        helper.make_node("Abs", ["a"], ["y"], "two\x1b[31m"),
    )
    output = tmp_path / "tagged.onnx"
    done = command("adopt", silent, "-o", output)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {silent} has nothing to adopt: {p.UNTAGGED}\n")
    assert not output.exists()
    inspection = sardonyx.inspect(silent)
    assert isinstance(inspection, Inspection)
    assert (inspection.modules, inspection.evidence, inspection.coverage.root) == ((), {}, 2)
    assert {node.reason for node in inspection.root_nodes} == {p.NO_TAGS}


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (["/conv/Conv", "/head/Gemm", "n1", "n2"], ["", "conv", "head"]),  # torch
        (["call/model/conv/Conv2D", "call/model/dense/MatMul", "call/model/dense/BiasAdd"], ["", "conv", "dense"]),
        (["m/conv/BiasAdd;m/dense/MatMul", "m/dense/Relu", "m/act/Relu", "n"], ["", "act", "conv", "dense"]),
        (["jit_f_/Net/Dense_0/dot", "jit_f_/Net/Conv_0/conv", "jit_f_/add"], ["", "Net", "Net.Conv_0", "Net.Dense_0"]),
        (["m/a/MatMul", "m/a/MatMul/Reshape", "m/b/Add"], ["", "a", "b"]),  # a scope that is a node
        (["/Conv", "/Gemm", "/Relu"], []),  # the model itself is the only module
        (["model/Conv", "model/Relu"], []),
        (["MatMul_0/MatMulAddFusion", "Relu_1/Fused"], []),  # of ONNX Runtime
        (["a/b", "Relu_1", "p2o.Conv.0", "Conv@3"], []),  # most names have no scope
    ],
)
def test_modules_are_read_from_the_names_of_any_exporter(tmp_path: Path, names: list[str], modules: list[str]) -> None:
    values = ["x", *(f"v{at}" for at in range(len(names) - 1)), "y"]
    kinds = ["MatMul" if "MatMul_0" in name else "Relu" for name in names]
    nodes = [
        helper.make_node(kind, [before] * (2 if kind == "MatMul" else 1), [after], name)
        for kind, name, before, after in zip(kinds, names, values[:-1], values[1:], strict=True)
    ]
    inspection = sardonyx.inspect(_write(tmp_path / "foreign.onnx", *nodes))
    assert isinstance(inspection, Inspection)
    assert sorted(module.path for module in inspection.modules) == modules
    assert bool(inspection.evidence) == bool(modules)
    assert set(inspection.evidence) <= {"scoped names"}


def test_adopt_counts_nodes_as_inspect_does(small_model: Callable[[str, str], Path]) -> None:
    model = small_model("bert", "torchscript")
    inspection = sardonyx.inspect(model)
    assert isinstance(inspection, Inspection)
    assert sardonyx.adopt(model).nodes == inspection.counts.nodes


@pytest.mark.parametrize(("exporter", "summary"), [("dynamo", "torch metadata"), ("torchscript", "scoped names")])
def test_attributes_bring_the_tags_through_a_tool_that_drops_metadata(
    small_model: Callable[[str, str], Path], tmp_path: Path, command: Command, exporter: str, summary: str
) -> None:
    tagged, stripped, back = (tmp_path / f"{name}.onnx" for name in ("tagged", "stripped", "back"))
    first = Adoption.from_json(
        command("adopt", small_model("bert", exporter), "-o", tagged, "--tag-attributes", "--json").out
    )
    assert list(first.evidence) == [summary]
    assert first.coverage.root <= 0.03 * first.nodes
    proto = onnx.load(tagged)
    for number, node in enumerate(proto.graph.node):
        del node.metadata_props[:]
        node.name = f"n{number}"
    onnx.save(proto, stripped)
    second = Adoption.from_json(command("adopt", stripped, "-o", back, "--json").out)
    assert list(second.evidence) == ["attributes"]
    assert second.attributes
    pairs = list(zip(onnx.load(tagged).graph.node, _paths(tagged), _paths(back), strict=True))
    worn = [any(a.name == "__module_path" for a in node.attribute) for node, _, _ in pairs]
    assert sum(worn) > 0.5 * len(pairs)
    assert all(before == after for (_, before, after), kept in zip(pairs, worn, strict=True) if kept)


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "FILE"),
        ("inspect", "FILE", "--module", "one"),
        ("adopt", "FILE"),
        ("optimize", "FILE", "--dry-run"),
        ("optimize", "FILE", "--dry-run", "--keep-module", "one"),
        ("profile", "FILE", "--runs", "5"),
        ("extract", "FILE", "--module", "one"),
    ],
)
def test_every_command_reports_a_file_without_tags_in_the_same_words(
    arguments: tuple[str, ...], tmp_path: Path, command: Command
) -> None:
    nodes = helper.make_node("Neg", ["x"], ["a"], "one"), helper.make_node("Abs", ["a"], ["y"], "a/two")
    file = _write(tmp_path / "silent.onnx", *nodes)
    done = command(*(file if argument == "FILE" else argument for argument in arguments))
    assert (done.out + done.err).count(p.UNTAGGED) == 1
    assert "Modules\n" not in done.out
    assert "By module" not in done.out
