"""The inspector counts nodes and weights, reads no weight values, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import ModelError, UsageError
from sardonyx.records.inspection import (
    Coverage,
    DynamicDim,
    FunctionUse,
    Inspection,
    ModuleInspection,
    OpUse,
    Port,
    RootNode,
)
from sardonyx.verbs.analyze.inspector import inspect


def _layered(layers: int = 3) -> onnx.ModelProto:
    """`layers` equal layers of MatMul and Add under scoped names, an If, a function call and a Constant."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for index in range(layers):
        weights.append(numpy_helper.from_array(np.ones((4, 4), np.float32) * index, f"w{index}"))
        weights.append(numpy_helper.from_array(np.ones(4, np.float32) * index, f"b{index}"))
        scope = f"/encoder/layer.{index}/dense"
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"], f"{scope}/MatMul"))
        nodes.append(helper.make_node("Add", [f"m{index}", f"b{index}"], [f"a{index}"], f"{scope}/Add"))
        value = f"a{index}"
    axes = numpy_helper.from_array(np.array([0, 1], np.int64), "axes")
    nodes.append(helper.make_node("Constant", [], ["axes"], "/head/Constant", value=axes))
    nodes.append(helper.make_node("ReduceSum", [value, "axes"], ["total"], "/head/ReduceSum", keepdims=0))
    nodes.append(helper.make_node("Greater", ["total", "zero"], ["positive"], "/head/Greater"))
    then, other = (
        helper.make_graph(
            [helper.make_node(op, [value], [f"{op}_out"], f"/head/{op}")],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)],
        )
        for op in ("Relu", "Neg")
    )
    nodes.append(helper.make_node("If", ["positive"], ["chosen"], "/head/If", then_branch=then, else_branch=other))
    nodes.append(helper.make_node("Twice", ["chosen"], ["y"], "/head/Twice", domain="own"))
    weights.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    graph = helper.make_graph(
        nodes,
        "layered",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        weights,
    )
    twice = helper.make_function(
        "own", "Twice", ["v"], ["w"], [helper.make_node("Add", ["v", "v"], ["w"])], [helper.make_opsetid("", 18)]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(
        graph, functions=[twice], opset_imports=opsets, ir_version=10, producer_name="test", producer_version="1"
    )


def test_every_graph_is_counted_and_constants_separately() -> None:
    inspection = inspect(_layered())
    # 6 in the layers, ReduceSum, Greater, If, Relu, Neg, Twice, and the Add of the function
    assert (inspection.counts.nodes, inspection.counts.constants, inspection.counts.initializers) == (13, 1, 7)
    assert inspection.counts.bytes == 3 * (16 + 4) * 4 + 4 + 16
    assert inspection.parameters == 3 * (16 + 4)
    assert OpUse("", "Add", 4) in inspection.ops
    assert OpUse("own", "Twice", 1) in inspection.ops
    assert sum(op.count for op in inspection.ops) == 14
    assert inspection.functions == (FunctionUse("own", "Twice", 1, 1),)
    assert {(body.node, body.attribute, body.nodes) for body in inspection.bodies} == {
        ("/head/If", "then_branch", 1),
        ("/head/If", "else_branch", 1),
    }


def test_the_interface_is_listed() -> None:
    inspection = inspect(_layered())
    assert inspection.inputs == (Port("x", "float", ("batch", 4)),)
    assert inspection.outputs == (Port("y", "float", (None, 4)),)
    assert inspection.dynamic_dims == (DynamicDim("batch", ("x[0]",)), DynamicDim("y[0]", ("y[0]",)))
    assert (inspection.opsets, inspection.ir_version, inspection.producer) == ({"": 18, "own": 1}, 10, "test 1")


def test_the_module_tree_adds_up() -> None:
    modules = {module.path: module for module in inspect(_layered()).modules}
    assert modules["encoder.layer.1.dense"].nodes == 2
    assert modules["encoder.layer.1.dense"].parameters == 20
    assert modules["encoder"].total_nodes == 6
    assert modules["encoder"].total_parameters == 60
    assert (modules["encoder"].nodes, modules["encoder"].parameters) == (0, 0)
    assert modules["head"].nodes == 6  # the bodies' nodes too
    assert modules[""].total_nodes == 13
    assert modules[""].total_parameters == 60


def test_a_weight_shared_by_two_modules_belongs_to_their_common_parent() -> None:
    model = _layered()
    model.graph.node[2].input[1] = "w0"  # layer 1 now uses the weight of layer 0
    modules = {module.path: module for module in inspect(model).modules}
    assert modules["encoder.layer"].parameters == 16
    assert modules["encoder.layer.0.dense"].parameters == 4


def test_a_file_a_proto_and_a_graph_give_the_same_answer_and_stay_unchanged(tmp_path: Path) -> None:
    proto = _layered()
    untouched = proto.SerializeToString(deterministic=True)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    from_file, from_proto = inspect(path), inspect(proto)
    graph = ir.from_proto(proto)
    metas = [dict(node.meta) for node in graph.graph]
    from_graph = inspect(graph)
    assert from_file.file_bytes == path.stat().st_size
    assert proto.SerializeToString(deterministic=True) == untouched
    assert [dict(node.meta) for node in graph.graph] == metas
    for inspection in (from_file, from_proto, from_graph):
        assert (inspection.modules, inspection.ops, inspection.counts) == (
            from_proto.modules,
            from_proto.ops,
            from_proto.counts,
        )


def test_external_data_counts_as_part_of_the_file(tmp_path: Path) -> None:
    proto = _layered()
    proto.graph.initializer[0].raw_data = np.zeros((4, 4), np.float32).tobytes()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=0)
    assert inspect(path).file_bytes == path.stat().st_size + (tmp_path / "model.data").stat().st_size


def test_the_record_reads_back_equal() -> None:
    inspection = inspect(_layered())
    assert Inspection.from_json(inspection.to_json()) == inspection
    assert json.loads(inspection.to_json())["opsets"] == {"": 18, "own": 1}


def test_types_that_are_not_tensors_have_names() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.INT64, None)
    optional = helper.make_value_info("o", helper.make_optional_type_proto(sequence.type))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])],
        "g",
        [sequence, optional],
        [helper.make_tensor_sequence_value_info("t", TensorProto.INT64, None)],
    )
    inspection = inspect(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]))
    assert [port.type for port in (*inspection.inputs, *inspection.outputs)] == [
        "sequence(int64)",
        "optional(sequence(int64))",
        "sequence(int64)",
    ]


def test_an_input_with_a_default_is_marked() -> None:
    proto = _layered()
    proto.graph.input.append(helper.make_tensor_value_info("b0", TensorProto.FLOAT, [4]))
    assert inspect(proto).inputs[1] == Port("b0", "float", (4,), overridable=True)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ModelError):
        inspect(tmp_path / "text.onnx")


def _props(node: onnx.NodeProto, **values: str) -> None:
    for key, value in values.items():
        node.metadata_props.add(key=f"sardonyx.{key}", value=value)


def test_coverage_counts_only_known_modules() -> None:
    model = _layered(2)
    names = {node.name: node for node in model.graph.node}
    _props(names["/head/ReduceSum"], module_path="head", source_module="/Net/Head", how="inherited")
    _props(names["/head/Greater"], module_path="", source_module="/Net")
    lost = helper.make_node("Shape", ["x"], ["shape"], "lost")
    _props(lost, module_path="", source_module="/Net", how="root")
    model.graph.node.append(lost)
    inspection = inspect(model)
    # 4 in the layers, Constant, Greater, If, its two bodies, Twice; ReduceSum; Shape and the function's Add
    assert inspection.coverage == Coverage(direct=10, inherited=1, root=2, own=1)
    assert sum((inspection.coverage.direct, inspection.coverage.inherited, inspection.coverage.root)) == 13
    assert RootNode("lost", "Shape", "no module ran it, and nothing says where it belongs") in inspection.root_nodes
    assert len(inspection.root_nodes) == 2


def test_tied_weights_list_every_consumer_and_calls_are_one_module() -> None:
    model = _layered()
    model.graph.node[2].input[1] = "w0"
    inspection = inspect(model)
    assert [(w.name, w.shape, w.modules) for w in inspection.tied] == [
        ("w0", (4, 4), ("encoder.layer.0.dense", "encoder.layer.1.dense"))
    ]
    for node in model.graph.node[2:4]:
        _props(node, module_path="encoder.layer.0.dense", call="encoder.layer.0@1.dense", source_module="/Dense")
    again = inspect(model)
    assert again.tied == ()
    assert {m.path: m.nodes for m in again.modules}["encoder.layer.0.dense"] == 4
    part = inspect(model, module="encoder.layer.0")
    assert part.calls == ("encoder.layer.0", "encoder.layer.0@1")
    assert part.nodes == 4


def test_one_module_shows_its_boundary_and_shared_weights() -> None:
    model = _layered()
    model.graph.node[4].input[1] = "w1"  # layer 2 uses the weight of layer 1
    inspection = inspect(model, module="encoder.layer.1")
    assert (inspection.path, inspection.nodes, inspection.constants, inspection.parameters) == (
        "encoder.layer.1",
        2,
        0,
        20,
    )
    assert [port.name for port in inspection.inputs] == ["a0"]
    assert inspection.inputs[0] == Port("a0", "float", ("batch", 4))  # inferred, the file declares nothing
    assert [port.name for port in inspection.outputs] == ["a1"]
    assert {w.name: w.modules for w in inspection.weights}["w1"] == ("encoder.layer.1.dense", "encoder.layer.2.dense")
    assert [module.path for module in inspection.modules] == ["encoder.layer.1", "encoder.layer.1.dense"]
    assert inspection.ops == (OpUse("", "Add", 1), OpUse("", "MatMul", 1))
    assert ModuleInspection.from_json(inspection.to_json()) == inspection
    head = inspect(model, module="hea*")
    assert [port.name for port in head.inputs] == ["a2"]
    assert (head.nodes, head.constants, head.outputs[0].name) == (6, 1, "y")


def test_a_node_of_several_modules_is_listed_as_shared() -> None:
    model = _layered()
    paths = ["encoder.layer.0.dense", "encoder.layer.1.dense"]
    _props(model.graph.node[1], module_path="encoder.layer", source_module="/Layers", module_paths=json.dumps(paths))
    assert inspect(model, module="encoder.layer.1").shared_nodes == ("/encoder/layer.0/dense/Add",)
    assert inspect(model, module="encoder.layer").shared_nodes == ()


def test_a_module_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no module 'decoder'"):
        inspect(_layered(), module="decoder")
    with pytest.raises(UsageError, match="3 modules"):
        inspect(_layered(), module="encoder.layer.*")
