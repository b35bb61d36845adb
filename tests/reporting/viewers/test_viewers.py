"""The formats of other viewers match the document for any names."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import networkx
import onnx
from hypothesis import given, settings

import graphs
import hostile
from sardonyx.analysis.dag import dag
from sardonyx.records.module_graph import BodyValue, HierarchyDag, Initializer, ModuleGraph, Operation
from sardonyx.records.run import How
from sardonyx.reporting.viewers.graphml import render_graphml
from sardonyx.reporting.viewers.model_explorer import render_model_explorer


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


def test_modules_may_have_any_depth() -> None:
    tags = ["/" + "/".join("a" * depth) for depth in range(1, 3000)]
    modules = {
        tag: ModuleGraph(tag, None, ("op",), (), tuple(tags[i + 1 : i + 2]), (), ()) for i, tag in enumerate(tags)
    }
    hierarchy = HierarchyDag("deep", modules, {"op": _operation((), (), tags[-1])}, {})
    assert render_graphml(hierarchy).count("</graph></node>") == len(tags)


@settings(max_examples=20)
@given(graphs.models())
def test_model_explorer_gets_the_same_graph(model: onnx.ModelProto) -> None:
    hierarchy = dag(model)
    (graph,) = json.loads(render_model_explorer(hierarchy))["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert list(nodes) == list(hierarchy.operations)
    edges = {(edge["sourceNodeId"], name) for name, node in nodes.items() for edge in node["incomingEdges"]}
    assert edges == set(hierarchy.modules["/"].edges)
    for name, node in nodes.items():
        assert "/" + node["namespace"] == hierarchy.operations[name].tags[0]
        for edge in node["incomingEdges"]:
            value = hierarchy.operations[edge["sourceNodeId"]].outputs[int(edge["sourceNodeOutputId"])]
            assert value == hierarchy.operations[name].inputs[int(edge["targetNodeInputId"])]


def test_model_explorer_knows_bodies_weights_and_groups() -> None:
    collection = json.loads(render_model_explorer(_document("/a")))
    assert collection["label"] == "/a"
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert [edge["sourceNodeId"] for edge in nodes["holder/a"]["incomingEdges"]] == ["first/a", "inner/a"]
    assert {"key": "shape", "value": "float[2, 3]"} in nodes["first/a"]["inputsMetadata"][1]["attrs"]
    assert graph["groupNodeAttributes"]["a"] == {"module": "/a", "class": "/a", "nodes": "1"}
    values = [pair["value"] for node in nodes.values() for pair in node["attrs"]]
    assert all(isinstance(value, str) for value in values)
    assert '"/a"' in values
