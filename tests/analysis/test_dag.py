"""Every module's graph contains exactly its own nodes, for files of any exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import networkx
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import graphs
from sardonyx.errors import UsageError
from sardonyx.records.inspection import BodyValue, HierarchyDag, TensorValue
from sardonyx.records.run import How
from sardonyx.verbs.dag.dag import dag


def _is_within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


@pytest.mark.slow
@settings(max_examples=40)
@given(graphs.models())
def test_every_module_contains_exactly_its_own_nodes(model: onnx.ModelProto) -> None:
    hierarchy = dag(model)
    proto = {node.name: node for node in model.graph.node}
    assert list(hierarchy.operations) == list(proto)
    producers = {output: node.name for node in model.graph.node for output in node.output}
    readers = [(value, node.name) for node in model.graph.node for value in node.input]
    results = {value.name for value in model.graph.output}
    weights = {tensor.name for tensor in model.graph.initializer}
    for module in hierarchy.modules.values():
        inside = {name for name, op in hierarchy.operations.items() if _is_within(op.module_path, module.path)}
        inside |= {
            producers[value] for value, reader in readers if reader in inside and _constant(proto, producers, value)
        }
        assert set(module.nodes) == inside
        assert [name for name in proto if name in inside] == list(module.nodes)
        edges = {(producers[value], name) for value, name in readers if value in producers}
        assert set(module.edges) == {(a, b) for a, b in edges if a in inside and b in inside}
        taken = {value for value, name in readers if name in inside and producers.get(value) not in inside}
        assert set(module.inputs) == taken - weights
        given_away = {value for value, name in readers if producers.get(value) in inside and name not in inside}
        given_away = {value for value in given_away if not _constant(proto, producers, value)}
        assert set(module.outputs) == given_away | {value for value in results if producers[value] in inside}


def _constant(proto: dict[str, onnx.NodeProto], producers: dict[str, str], value: str) -> bool:
    return value in producers and proto[producers[value]].op_type == "Constant"


@pytest.mark.slow
@settings(max_examples=20)
@given(graphs.models())
def test_the_document_is_valid_and_reads_back_equal(model: onnx.ModelProto) -> None:
    hierarchy = dag(model)
    assert HierarchyDag.from_json(hierarchy.to_json()) == hierarchy
    jsonschema.validate(json.loads(hierarchy.to_json()), HierarchyDag.json_schema())
    tree = networkx.DiGraph((tag, child) for tag, module in hierarchy.modules.items() for child in module.children)
    tree.add_nodes_from(hierarchy.modules)
    assert networkx.is_arborescence(tree)
    assert set(tree) == set(hierarchy.modules)
    for tag, module in hierarchy.modules.items():
        assert networkx.is_directed_acyclic_graph(networkx.DiGraph(module.edges))
        assert all(set(hierarchy.modules[child].nodes) <= set(module.nodes) for child in module.children)
        assert all(tag in _chain(tree, hierarchy.operations[name].tags) for name in module.nodes)


def _chain(tree: networkx.DiGraph, tags: tuple[str, ...]) -> set[str]:
    return set(tags).union(*(networkx.ancestors(tree, tag) for tag in tags))


def _module(path: str, *others: str) -> dict[str, str]:
    """Metadata of a node that comes from these modules; its class path is the path in capitals."""
    paths = sorted({path, *others})
    common = path if not others else ""
    props = {"sardonyx.module_path": common, "sardonyx.source_module": _tag(common)}
    if others:
        props["sardonyx.module_paths"] = json.dumps(paths)
        props["sardonyx.hierarchy_tags"] = json.dumps([_tag(each) for each in paths])
    return props


def _tag(path: str) -> str:
    return "/Net" + "".join("/" + part.title() for part in path.split(".") if part)


def _node(op: str, inputs: list[str], output: str, name: str, module: dict[str, str], **attributes: Any):
    return helper.make_node(op, inputs, [output], name, metadata_props=None, **attributes), module


def _model(nodes: list[tuple[onnx.NodeProto, dict[str, str]]], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    for node, props in nodes:
        for key, value in props.items():
            node.metadata_props.add(key=key, value=value)
    graph = helper.make_graph(
        [node for node, _ in nodes],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _shared() -> onnx.ModelProto:
    """`a` and `b` share a weight, a Constant and a fused node; `b` twice has the same node name, `c` has none."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    return _model(
        [
            _node("Constant", [], "two", "two", _module("a"), value=two),
            _node("MatMul", ["x", "w"], "p", "mm", _module("a")),
            _node("Mul", ["p", "two"], "q", "mul", _module("a", "b")),
            _node("MatMul", ["q", "w"], "r", "mm", _module("b")),
            _node("Mul", ["r", "two"], "s", "mm", _module("b")),
            _node("Neg", ["s"], "y", "", _module("c")),
        ],
        [weight],
    )


def test_shared_values_are_listed_in_all_their_modules() -> None:
    hierarchy = dag(_shared())
    assert list(hierarchy.operations) == ["two", "mm", "mul", "mm#2", "mm#3", "y"]
    assert hierarchy.operations["mul"].tags == ("/Net", "/Net/A", "/Net/B")
    assert hierarchy.modules["/Net/A"].nodes == ("two", "mm")  # a fused node belongs to the common parent
    assert hierarchy.modules["/Net/B"].nodes == (
        "two",
        "mm#2",
        "mm#3",
    )  # a constant belongs to every module that reads it
    assert hierarchy.modules["/Net/B"].edges == (("mm#2", "mm#3"), ("two", "mm#3"))
    assert (hierarchy.modules["/Net/B"].inputs, hierarchy.modules["/Net/B"].outputs) == (("q",), ("s",))
    assert hierarchy.modules["/Net/A"].outputs == ("p",)
    assert hierarchy.operations["two"].tags == ("/Net/A", "/Net", "/Net/B")
    assert hierarchy.operations["two"].attributes["value"] == TensorValue("float", (), (2.0,))
    weight = hierarchy.initializers["w"]
    assert (weight.dtype, weight.shape) == ("float", (4, 4))
    assert (weight.tags, weight.users) == (("/Net/A", "/Net/B"), ("mm", "mm#2"))
    model = _shared()
    model.graph.node[2].input[1] = "w"  # the fused node alone
    model.graph.node[1].input[1] = model.graph.node[3].input[1] = "x"
    assert dag(model).initializers["w"].tags == ("/Net/A", "/Net/B")


def test_one_module_is_selected_by_tag_path_or_glob() -> None:
    for wanted in ("/Net/B", "b"):
        hierarchy = dag(_shared(), module=wanted)
        assert list(hierarchy.modules) == ["/Net/B"]
        assert list(hierarchy.operations) == ["two", "mm#2", "mm#3"]
        assert list(hierarchy.initializers) == ["w"]
    assert list(dag(_shared(), module="/Net/*").modules) == ["/Net/A", "/Net/B", "/Net/C"]
    assert not dag(_shared(), module="c").initializers
    with pytest.raises(UsageError, match="no module 'd'"):
        dag(_shared(), module="d")


def _branching() -> onnx.ModelProto:
    """An If in `head` whose branches read a value of `body`, one of them in a module of its own; a Loop beside it."""
    out = helper.make_tensor_value_info
    then = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["t"], "/head/then/Relu")], "then", [], [out("t", 1, [4])]
    )
    other = helper.make_graph([helper.make_node("Neg", ["v"], ["e"], "/head/Neg")], "else", [], [out("e", 1, [4])])
    step = helper.make_graph(
        [
            helper.make_node("Add", ["state", "v"], ["next"], "/loop/Add"),
            helper.make_node("Identity", ["on"], ["on_out"], "/loop/Identity"),
        ],
        "step",
        [out("i", TensorProto.INT64, []), out("on", TensorProto.BOOL, []), out("state", 1, [4])],
        [out("on_out", TensorProto.BOOL, []), out("next", 1, [4])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["v"], "/body/Exp"),
        helper.make_node("If", ["flag"], ["chosen"], "/head/If", then_branch=then, else_branch=other),
        helper.make_node("Loop", ["count", "", "chosen"], ["y"], "/loop/Loop", body=step),
    ]
    inputs = [out("x", 1, [4]), out("flag", TensorProto.BOOL, []), out("count", TensorProto.INT64, [])]
    graph = helper.make_graph(nodes, "branching", inputs, [out("y", 1, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_bodies_belong_to_their_modules_and_captured_values_are_edges() -> None:
    model = _branching()
    onnx.checker.check_model(model)
    hierarchy = dag(model)
    top = hierarchy.modules["/"]
    assert len(top.edges) == 8
    assert set(top.edges) == {
        ("/body/Exp", "/head/then/Relu"),
        ("/body/Exp", "/head/Neg"),
        ("/head/then/Relu", "/head/If"),
        ("/head/Neg", "/head/If"),
        ("/body/Exp", "/loop/Add"),
        ("/head/If", "/loop/Loop"),
        ("/loop/Identity", "/loop/Loop"),
        ("/loop/Add", "/loop/Loop"),
    }
    assert set(hierarchy.modules["/head"].nodes) == {"/head/then/Relu", "/head/Neg", "/head/If"}
    assert set(hierarchy.modules["/head"].inputs) == {"v", "flag"}
    assert hierarchy.modules["/head/then"].outputs == ("t",)
    assert hierarchy.modules["/loop"].inputs == (
        "v",
        "count",
        "chosen",
    )  # the loop's own body inputs are not captured values
    assert hierarchy.operations["/loop/Loop"].inputs == ("count", "", "chosen")
    assert hierarchy.operations["/head/If"].attributes["then_branch"] == BodyValue(("/head/then/Relu",))
    assert (top.inputs, top.outputs) == (("x", "flag", "count"), ("y",))


def _torch_node(op: str, inputs: list[str], output: str, scopes: list[str], kinds: list[str]) -> onnx.NodeProto:
    node = helper.make_node(op, inputs, [output], output)
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr([*scopes, output]))
    node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr([*kinds, op]))
    return node


def _with_linear() -> onnx.ModelProto:
    net, block, linear = "lib.Net", "lib.Block", "torch.nn.modules.linear.Linear"
    nodes = [
        _torch_node("MatMul", ["x", "w"], "m", ["", "block", "block.dense"], [net, block, linear]),
        _torch_node("Relu", ["m"], "y", ["", "block"], [net, block]),
    ]
    return _model([(node, {}) for node in nodes], [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")])


def test_torch_nn_modules_have_a_graph_on_request() -> None:
    plain, deep = dag(_with_linear()), dag(_with_linear(), include_torch_nn=True)
    assert {tag: module.kind for tag, module in plain.modules.items()} == {"/Net": "lib.Net", "/Net/Block": "lib.Block"}
    assert plain.operations["m"].tags == ("/Net/Block",)
    assert plain.operations["m"].module_path == "block.dense"
    assert plain.operations["m"].how is How.DIRECT
    assert deep.modules["/Net/Block"].children == ("/Net/Block/Linear",)
    assert deep.modules["/Net/Block/Linear"].nodes == ("m",)
    assert deep.operations["m"].tags == ("/Net/Block/Linear",)
    assert list(dag(_with_linear(), module="/Net/Block/Linear", include_torch_nn=True).operations) == ["m"]
    with pytest.raises(UsageError, match="no tag of its own"):
        dag(_with_linear(), module="block.dense")


def test_numbered_modules_are_sorted_and_calls_are_one_module() -> None:
    nodes = [
        _node("Relu", ["x"], "a", "late", _module("layer.10")),
        _node("Relu", ["a"], "b", "early", _module("layer.9")),
        _node("Neg", ["b"], "y", "again", _module("layer.9") | {"sardonyx.call": "layer.9@1"}),
    ]
    hierarchy = dag(_model(nodes, []))
    parent = next(module for module in hierarchy.modules.values() if len(module.children) == 2)
    assert [hierarchy.modules[tag].path for tag in parent.children] == ["layer.9", "layer.10"]
    assert hierarchy.modules["/Net/Layer/9"].nodes == ("early", "again")
    assert (hierarchy.operations["again"].module_path, hierarchy.operations["again"].call) == ("layer.9", "layer.9@1")


def test_no_weight_is_read_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = _shared()
    model.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(np.zeros((64, 64), np.float32), "two"))
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0, convert_attribute=True)
    data = tmp_path / "weights"
    data.write_bytes(b"\xff" * data.stat().st_size)
    data.chmod(0)
    before = path.read_bytes()
    hierarchy = dag(path)
    assert hierarchy.model == str(path)
    assert hierarchy.operations["two"].attributes["value"] == TensorValue("float", (64, 64))
    assert path.read_bytes() == before
    graph = ir.from_proto(_shared())
    dag(graph)
    assert all(not node.meta for node in graph.graph)


def test_numbers_without_a_json_form_are_strings() -> None:
    values = numpy_helper.from_array(np.array([np.nan, np.inf, -np.inf, 1.5], np.float16), "v")
    nodes = [
        _node("Constant", [], "c", "c", _module("a"), value=values),
        _node("Constant", [], "t", "t", _module("a"), value_strings=["é", "<b>"]),
        _node("LeakyRelu", ["x"], "y", "r", _module("a"), alpha=float("inf")),
    ]
    hierarchy = dag(_model(nodes, []))
    assert hierarchy.operations["c"].attributes["value"] == TensorValue("float16", (4,), ("nan", "inf", "-inf", 1.5))
    assert hierarchy.operations["t"].attributes == {"value_strings": ("é", "<b>")}
    assert hierarchy.operations["r"].attributes == {"alpha": "inf"}
    jsonschema.validate(json.loads(hierarchy.to_json()), HierarchyDag.json_schema())
