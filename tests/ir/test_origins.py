"""Origins are read, inherited, written and kept by `optimize`: every node is tagged, and every tag is correct."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.ir import io, origins
from sardonyx.ir.scopes import scopes
from sardonyx.records import provenance as p
from sardonyx.records.run import How

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.traced import Exporter

HEAD = '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>'


def graph(text: str) -> ir.Model:
    """A model from text; a value `a_b__c` is the output of a node of the module `a.b`."""
    model = io.from_proto(onnx.parser.parse_model(f"{HEAD}\n{text}"))
    for scope in scopes(model):
        for node in scope.graph:
            path = (node.outputs[0].name or "").rpartition("__")[0].replace("_", ".")
            if path:
                node.metadata_props.update({p.MODULE_PATH: path, p.SOURCE_MODULE: "/" + path.replace(".", "/")})
    return model


def origins_of(model: ir.Model) -> dict[str, tuple[set[str], str]]:
    """First output of every node -> origins and how they were determined."""
    nodes = [node for scope in scopes(model) for node in scope.graph]
    return {node.outputs[0].name or "": (set(origins.origins(node)), origins.how(node).value) for node in nodes}


def test_nodes_without_a_module_inherit_from_consumers_otherwise_from_producers() -> None:
    model = graph("""agraph (float[2,4] x) => (float[2,4] y, float[2,4] z, float[2,4] w) {
        shape = Shape(x)
        both = Neg(x)
        a_b__one = Reshape(x, shape)
        a_c__two = Add(a_b__one, both)
        d__three = Add(a_c__two, both)
        y = Abs(a_c__two)
        z = Identity(d__three)
        w = Exp(x)
    }""")
    origins.attach(model)
    assert origins_of(model) == {
        "shape": ({"a.b"}, "inherited"),
        "both": (set(), "root"),
        "a_b__one": ({"a.b"}, "direct"),
        "a_c__two": ({"a.c"}, "direct"),
        "d__three": ({"d"}, "direct"),
        "y": ({"a.c"}, "inherited"),
        "z": ({"d"}, "inherited"),
        "w": (set(), "root"),
    }
    reasons = {node.outputs[0].name: origins.reason(node) for node in model.graph}
    assert reasons["both"] == "no module ran it, and its consumers have nothing else in common: a.c, d"
    assert reasons["w"] == "no module ran it, and nothing says where it belongs"


def test_nodes_read_only_by_the_root_module_belong_to_it() -> None:
    model = graph("agraph (float[2] x) => (float[2] y) { s = Neg(x)  t = Add(s, x)  a__u = Abs(t)  y = Neg(a__u) }")
    for node in model.graph:
        if node.outputs[0].name == "t":
            node.metadata_props[p.MODULE_PATH] = ""
    origins.attach(model)
    assert origins_of(model)["s"] == ({""}, "inherited")
    assert origins_of(model)["t"] == ({""}, "direct")


def test_bodies_inherit_from_their_node() -> None:
    model = graph("""agraph (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] u) { u = Neg(x) },
                    else_branch = e () => (float[2] v) { v = Abs(x) }>
    }""")
    model.graph[0].metadata_props.update({p.MODULE_PATH: "gate", p.SOURCE_MODULE: "/Gate"})
    origins.attach(model)
    assert origins_of(model)["u"] == ({"gate"}, "inherited")
    hierarchy = origins.attach(model)
    origins.write(model, hierarchy)
    again = io.from_proto(io.to_proto(model))
    assert origins.attach(again).tag("gate") == "/Gate"
    assert origins_of(again) == origins_of(model)


@pytest.mark.parametrize("names", [("s", "y"), ("MatMul_0/MatMulAddFusion", "model/act/Abs"), ("", "")])
def test_a_file_without_tags_has_no_modules(names: tuple[str, str]) -> None:
    model = graph("agraph (float[2] x) => (float[2] y) { s = Neg(x)  y = Abs(s) }")
    for node, name in zip(model.graph, names, strict=True):
        node.name = name
    hierarchy = origins.attach(model)
    assert not origins.is_tagged(model)
    assert [origins.evidence(node) for node in model.graph] == [None] * 2
    assert [(origins.origins(node), origins.how(node)) for node in model.graph] == [(p.UNKNOWN, How.ROOT)] * 2
    origins.write(model, hierarchy)
    assert [dict(node.metadata_props) for node in model.graph] == [{}, {}]


def test_paths_that_were_made_of_node_names_are_no_modules() -> None:
    model = graph("agraph (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph[0].metadata_props.update({p.MODULE_PATH: "Neg_0", p.SOURCE_MODULE: "/Neg_0", p.HOW: "root"})
    origins.write(model, origins.attach(model))
    assert not origins.is_tagged(model)
    assert dict(model.graph[0].metadata_props) == {}


def test_writing_and_reading_again_changes_nothing() -> None:
    model = graph("""agraph (float[2,4] x) => (float[2,4] y) {
        shape = Shape(x)  both = Neg(x)  a_b__one = Reshape(x, shape)  a_b__two = Add(a_b__one, both)
        y = Add(a_b__two, both)
    }""")
    names = {"a_b__one": "a.b", "a_b__two": "a.b@1"}
    for node in model.graph:
        if call := names.get(node.outputs[0].name or ""):
            node.metadata_props[p.CALL] = call
    origins.write(model, origins.attach(model))
    before = [dict(node.metadata_props) for node in model.graph]
    assert before[3][p.CALL] == "a.b@1"
    assert before[3][p.MODULE_PATH] == "a.b"
    again = io.from_proto(io.to_proto(model))
    hierarchy = origins.attach(again)
    assert origins_of(again) == origins_of(model)
    origins.write(again, hierarchy)
    assert [dict(node.metadata_props) for node in again.graph] == before


def _tagged_export(tmp_path: Path, exporter: Exporter) -> Path:
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, table: nn.Parameter) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.scale = table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lin(x) * self.scale + self.scale.exp())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table = nn.Parameter(torch.linspace(0.5, 2, 4))
            self.layers = nn.ModuleList([Layer(table), Layer(table)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (*self.layers, self.layers[0]):
                x = layer(x)
            return x + x.mean()

    torch.manual_seed(0)
    path = tmp_path / "raw.onnx"
    sardonyx.export(Net(), torch.randn(3, 4), path, exporter=exporter, verify="off")
    return path


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_after_optimize_tags_are_complete_and_correct(tmp_path: Path, exporter: Exporter) -> None:
    raw = _tagged_export(tmp_path, exporter)
    small = tmp_path / "small.onnx"
    run = sardonyx.optimize(raw, small, verify="end")
    assert run.status == "done"
    assert run.after.nodes < run.before.nodes
    before, after = io.load(raw), io.load(small)
    table = p.ModuleTable.from_json(before.metadata_props[p.MODULES])
    assert p.ModuleTable.from_json(after.metadata_props[p.MODULES]) == table
    known = {path for paths in table.classes.values() for path in paths}
    for node in after.graph:
        props, listed = node.metadata_props, _listed(node)
        assert props[p.SOURCE_MODULE].startswith("/Net")
        assert {p.module_of(path) for path in listed} <= known
        assert p.module_of(p.owner_of(frozenset(listed))) == props[p.MODULE_PATH]
        assert props.get(p.HOW, "inherited") in set(How)
    calls = {path.removesuffix(".lin") for node in after.graph for path in _listed(node)}
    assert calls >= {"layers.0", "layers.1", "layers.0@1"}
    for value in after.graph.initializers.values():
        users = {path for user in value.consumers() for path in _listed(user)}
        assert users <= _listed(value)


def _listed(thing: ir.Node | ir.Value) -> set[str]:
    """All modules that a node's or a constant's metadata names."""
    props = thing.metadata_props
    return set(json.loads(props.get(p.MODULE_PATHS, "[]")) or [props.get(p.CALL, props[p.MODULE_PATH])])


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_real_models_origins_survive_optimize(small_model: Callable[[str, str], Path], exporter: str) -> None:
    source = sardonyx.adopt(small_model("bert", exporter)).model
    assert source is not None
    result = sardonyx.optimize(source, verify="off").model
    assert result is not None

    def modules(model: ir.Model) -> set[str]:
        origins.attach(model)
        every = [origins.origins(node) for scope in scopes(model) for node in scope.graph]
        return set().union(*every, *(origins.origins(value) for value in model.graph.initializers.values()))

    lost = modules(source) - modules(result)
    assert not {path for path in lost if "dropout" not in path}
