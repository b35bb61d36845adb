"""The formats of other viewers match the document for any names."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import networkx
import onnx
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

import graphs
import hostile
from reporting.sample_run import sample_run
from reporting.sample_run_bundle import analysis_of_run, profile_of_run
from sardonyx.records.analysis import OperationCosts
from sardonyx.records.inspection import BodyValue, HierarchyDag, Initializer, ModuleGraph, Operation
from sardonyx.records.run import How
from sardonyx.verbs.dag.dag import dag
from sardonyx.verbs.dag.viewer_files import render_graphml, render_model_explorer, render_node_data


def _operation(inputs: tuple[str, ...], outputs: tuple[str, ...], tag: str, **others: Any) -> Operation:
    return Operation("Op", "", inputs, outputs, (tag,), tag.strip("/"), How.DIRECT, **others)


def _document(bad: str) -> HierarchyDag:
    """A model in which every name is hostile: two operations in one module and a body in another."""
    inner, first, holder = f"inner{bad}", f"first{bad}", f"holder{bad}"
    return HierarchyDag(
        bad,
        {
            "/": ModuleGraph("", None, (first, inner, holder), ((first, holder), (inner, holder)), (bad,), (), ()),
            bad: ModuleGraph(bad, bad, (first,), (), (), (f"x{bad}",), (f"v{bad}",)),
        },
        {
            first: Operation(bad, bad, (f"x{bad}", f"w{bad}"), (f"v{bad}",), (bad, "/"), bad, How.DIRECT, {bad: bad}),
            inner: _operation((), (f"t{bad}",), "/"),
            holder: _operation((f"v{bad}",), (f"y{bad}",), "/", attributes={"body": BodyValue((inner,))}),
        },
        {f"w{bad}": Initializer("float", (2, 3), (bad,), (first,))},
    )


HOSTILE = '<script a="1">\'&]]>--\x00\x1b[31m\n\r\t\ufffe\u202e'


@dataclass(frozen=True)
class Read:
    graph: networkx.DiGraph
    ids: dict[str, str]


def _read(text: str) -> Read:
    graph = networkx.read_graphml(io.BytesIO(text.encode()))
    return Read(graph, {data["name"]: node for node, data in graph.nodes(data=True)})


@pytest.mark.medium
@settings(max_examples=20)
@given(graphs.models())
def test_networkx_reads_the_same_graph(model: onnx.ModelProto) -> None:
    hierarchy = dag(model)
    read = _read(render_graphml(hierarchy))
    names = {node: name for name, node in read.ids.items()}
    assert {(names[a], names[b]) for a, b in read.graph.edges} == set(hierarchy.modules["/"].edges)
    assert set(names.values()) == {*hierarchy.operations, *hierarchy.modules}
    for name, operation in hierarchy.operations.items():
        data = read.graph.nodes[read.ids[name]]
        assert (data["op_type"], data["tag"], data["kind"]) == (operation.op_type, operation.tags[0], "operation")


def test_groups_are_nested_as_the_modules_are() -> None:
    text = render_graphml(_document("/a"))
    inner = text.index('name">/a<')
    assert text.index('name">/<') < text.index('<graph id="m0:"') < inner < text.index('name">first/a<')
    assert text.count('yfiles.foldertype="group"') == 2


def test_hostile_names_stay_text_in_xml() -> None:
    read = _read(render_graphml(_document(HOSTILE)))
    escaped = '<script a="1">\'&]]>--\\x00\\x1b[31m\\n\\r\\t\\ufffe\\u202e'
    assert f"first{escaped}" in read.ids
    assert read.graph.nodes[read.ids[f"first{escaped}"]]["op_type"] == escaped
    assert read.graph.number_of_edges() == 2


@settings(max_examples=40)
@given(hostile.NAMES)
def test_any_text_can_be_a_name(text: str) -> None:
    assert _read(render_graphml(_document("/m" + text))).graph.number_of_nodes() == 5


@pytest.mark.medium
def test_modules_may_have_any_depth() -> None:
    tags = ["/" + "/".join("a" * depth) for depth in range(1, 3000)]
    modules = {
        tag: ModuleGraph(tag, None, ("op",), (), tuple(tags[i + 1 : i + 2]), (), ()) for i, tag in enumerate(tags)
    }
    hierarchy = HierarchyDag("deep", modules, {"op": _operation((), (), tags[-1])}, {})
    assert render_graphml(hierarchy).count("</graph></node>") == len(tags)


@pytest.mark.medium
@settings(max_examples=20)
@given(graphs.models())
def test_model_explorer_gets_the_same_graph(model: onnx.ModelProto) -> None:
    hierarchy = dag(model)
    (graph,) = json.loads(render_model_explorer(hierarchy))["graphs"]
    shown = [node["id"] for node in graph["nodes"]]
    top = hierarchy.modules["/"]
    assert len(set(shown)) == len(shown) == len(top.inputs) + len(hierarchy.operations) + len(top.outputs)
    assert shown[len(top.inputs) : len(shown) - len(top.outputs)] == list(hierarchy.operations)
    ports = {node["id"]: node["label"] for node in graph["nodes"] if node["id"] not in hierarchy.operations}
    assert [*ports.values()] == [*top.inputs, *top.outputs]
    nodes = {node["id"]: node for node in graph["nodes"] if node["id"] in hierarchy.operations}
    edges = {(edge["sourceNodeId"], name) for name, node in nodes.items() for edge in node["incomingEdges"]}
    assert {edge for edge in edges if edge[0] not in ports} == set(top.edges)
    for name, node in nodes.items():
        tag = graph["groupNodeAttributes"][node["namespace"]]["tag"]
        assert tag == (hierarchy.operations[name].tags[0] if node["namespace"] else "/")
        for edge in node["incomingEdges"]:
            if edge["sourceNodeId"] in ports:
                assert ports[edge["sourceNodeId"]] == hierarchy.operations[name].inputs[int(edge["targetNodeInputId"])]
                continue
            value = hierarchy.operations[edge["sourceNodeId"]].outputs[int(edge["sourceNodeOutputId"])]
            assert value == hierarchy.operations[name].inputs[int(edge["targetNodeInputId"])]


def test_model_explorer_knows_bodies_weights_and_groups() -> None:
    collection = json.loads(render_model_explorer(_document("/a")))
    assert collection["label"] == "/a"
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert [edge["sourceNodeId"] for edge in nodes["holder/a"]["incomingEdges"]] == ["first/a", "inner/a"]
    assert {"key": "shape", "value": "float[2, 3]"} in nodes["first/a"]["inputsMetadata"][1]["attrs"]
    assert graph["groupNodeAttributes"]["a"] == {"module": "/a", "tag": "/a", "class": "/a", "nodes": "1"}
    values = [pair["value"] for node in nodes.values() for pair in node["attrs"]]
    assert all(isinstance(value, str) for value in values)
    assert '"/a"' in values


def test_modules_with_most_operations_are_no_layers_of_their_own() -> None:
    layers = [f"/net/encoder/layer/{place}" for place in range(4)]
    names = [f"{tag}/op" for tag in layers]
    operations = {name: _operation((), (), tag) for name, tag in zip(names, layers, strict=True)}
    operations["/net/head/linear/op"] = _operation((), (), "/net/head/linear")
    modules = {
        "/net": ModuleGraph("net", None, tuple(operations), (), ("/net/encoder", "/net/head"), (), ()),
        "/net/encoder": ModuleGraph("net.encoder", None, tuple(names), (), tuple(layers), (), ()),
        **{
            tag: ModuleGraph(tag[1:].replace("/", "."), None, (name,), (), (), (), ())
            for tag, name in zip(layers, names, strict=True)
        },
        "/net/head": ModuleGraph("net.head", None, ("/net/head/linear/op",), (), ("/net/head/linear",), (), ()),
        "/net/head/linear": ModuleGraph("net.head.linear", None, ("/net/head/linear/op",), (), (), (), ()),
    }
    (graph,) = json.loads(render_model_explorer(HierarchyDag("net", modules, operations, {})))["graphs"]
    spaces = [node["namespace"] for node in graph["nodes"]]
    assert spaces == [*(f"net.encoder.layer.{place}" for place in range(4)), "net.head/linear"]
    assert graph["groupNodeAttributes"][""]["tag"] == "/net"


def test_many_operations_of_an_opened_module_have_a_layer() -> None:
    names = [f"op{place}" for place in range(13)]
    top = ModuleGraph("net", None, tuple(names), (), (), (), ())
    document = HierarchyDag("net", {"/net": top}, {name: _operation((), (), "/net") for name in names}, {})
    (graph,) = json.loads(render_model_explorer(document))["graphs"]
    assert {node["namespace"] for node in graph["nodes"]} == {"operations of net"}
    assert graph["groupNodeAttributes"]["operations of net"]["tag"] == "/net"


def test_types_of_values_are_on_the_edges() -> None:
    document = replace(_document("/a"), types={"v/a": "float[batch,3]"})
    (graph,) = json.loads(render_model_explorer(document))["graphs"]
    first = next(node for node in graph["nodes"] if node["id"] == "first/a")
    assert {"key": "shape", "value": "float[batch,3]"} in first["outputsMetadata"][0]["attrs"]


def test_node_data_are_those_of_the_same_file() -> None:
    run, profile, analysis = sample_run(), profile_of_run(), analysis_of_run()
    new = next(node.name for event in run.events for node in event.after)
    costs = OperationCosts(names=("of another file", new), flops=(7, 5), bytes_moved=(1, 1))
    forms = (replace(form, operations=costs) for form in analysis.forms)
    analysis = replace(analysis, forms=tuple(forms))
    kernels = profile.models[1].kernels
    made = {node.name for event in run.events for node in event.after}
    names = [*(kernel.nodes[0] for kernel in kernels if kernel.nodes), *made]
    operations = {name: _operation((), (), "/") for name in names}
    document = HierarchyDag(
        "elsewhere/small.onnx", {"/": ModuleGraph("", None, tuple(names), (), (), (), ())}, operations, {}
    )
    records = [run, profile, analysis]
    files = {kind: json.loads(data)["model"] for kind, data in render_node_data(document, records).items()}
    assert list(files) == ["passes", "time", "flops"]
    assert files["flops"]["results"] == {new: {"value": 5}}
    assert files["time"]["name"] == "time (ms)"
    spent = sum(result["value"] for result in files["time"]["results"].values())
    assert spent == pytest.approx(sum(kernel.milliseconds for kernel in kernels if kernel.nodes))
    assert files["time"]["gradient"]
    assert {node: result["value"] for node, result in files["passes"]["results"].items()} == {
        node.name: event.pass_name for event in run.events for node in event.after
    }
    assert all(result["bgColor"].startswith("#") for result in files["passes"]["results"].values())
    other = replace(document, model="other.onnx")
    assert render_node_data(other, records) == {}
