"""Extraction of modules: their nodes, the values that cross the boundary, and when the cut must be wider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from graphs import models
from sardonyx.errors import ModelError, UsageError
from sardonyx.ir import origins
from sardonyx.ir.io import from_proto, load, to_proto
from sardonyx.ir.module_region import Extract, extract
from sardonyx.records.provenance import CALL, MODULE_PATH, MODULE_PATHS, Hierarchy, module_of, owner_of
from sardonyx.runtime import Session

F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741
X = helper.make_tensor_value_info("x", F, ["batch", 4])


def node(op: str, reads: str, makes: str, *modules: str, **attributes: Any) -> onnx.NodeProto:
    """A node of one module, or of several as after fusion."""
    made = helper.make_node(op, reads.split(), makes.split(), name=f"{op}_{makes.split()[0]}", **attributes)
    first, *others = modules
    tags = {MODULE_PATH: module_of(owner_of(frozenset(modules)))}
    if others:
        tags[MODULE_PATHS] = json.dumps(modules)
    elif tags[MODULE_PATH] != first:
        tags[CALL] = first
    for key, value in tags.items():
        made.metadata_props.add(key=key, value=value)
    return made


def model(nodes: list[onnx.NodeProto], outputs: str = "y", /, **constants: np.ndarray) -> onnx.ModelProto:
    """A model on rows of floats. Outputs are floats of unknown rank; no test depends on it."""
    graph = helper.make_graph(
        nodes,
        "whole",
        [X],
        [helper.make_tensor_value_info(name, F, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def cut(proto: onnx.ModelProto, path: str, *, call: int = 0, exact: bool = False) -> Extract:
    loaded = from_proto(proto)
    return extract(loaded, origins.attach(loaded), path, call=call, exact=exact)


def op_types(made: Extract) -> list[str]:
    return [each.op_type for each in made.model.graph]


def all_values(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All values that the model computes."""
    open_up = onnx.ModelProto.FromString(proto.SerializeToString())
    have = {value.name for value in open_up.graph.output}
    names = [name for each in open_up.graph.node for name in each.output if name and name not in have]
    open_up.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    results = [np.asarray(result) for result in Session(open_up).run(feeds)]
    return feeds | dict(zip([value.name for value in open_up.graph.output], results, strict=True))


def assert_correct_cut(made: Extract, values: dict[str, np.ndarray]) -> None:
    """The cut is a valid model and computes the values that the whole model has at the boundary."""
    proto = to_proto(made.model)
    onnx.checker.check_model(proto, full_check=True)
    results = [np.asarray(result) for result in Session(proto).run({name: values[name] for name in made.inputs})]
    for name, result in zip(made.outputs, results, strict=True):
        np.testing.assert_array_equal(result, values[name], err_msg=f"{name} of {made.path}")


CHAIN = [
    node("Mul", "x w", "a", "net.head"),
    node("Relu", "a", "b", "net.body.first"),
    node("Add", "b w", "c", "net.body"),
    node("Exp", "c", "d", "net.body.second"),
    node("Neg", "d", "y", "net"),
]
W = np.arange(1, 5, dtype=np.float32)


def test_the_boundary_has_the_names_types_and_dims_of_the_file() -> None:
    made = cut(model(CHAIN, w=W), "net.body")
    assert (made.inputs, made.outputs, op_types(made)) == (("a",), ("d",), ["Relu", "Add", "Exp"])
    value = made.model.graph.inputs[0]
    assert value.dtype == ir.DataType.FLOAT
    assert value.shape == ir.Shape(["batch", 4])
    assert (made.path, made.asked, made.straddling, made.notes) == ("net.body", "net.body", (), ())
    assert_correct_cut(made, all_values(model(CHAIN, w=W), {"x": np.ones((3, 4), np.float32)}))


def test_the_whole_model_is_the_model_at_the_empty_path() -> None:
    made = cut(model(CHAIN, w=W), "")
    assert (made.inputs, made.outputs, len(op_types(made))) == (("x",), ("y",), 5)


def test_the_source_is_unchanged_and_weights_are_shared() -> None:
    source = from_proto(model(CHAIN, w=W))
    hierarchy = origins.attach(source)
    before = to_proto(source).SerializeToString()
    made = extract(source, hierarchy, "net.body")
    assert to_proto(source).SerializeToString() == before
    assert made.model.graph.initializers["w"].const_value is source.graph.initializers["w"].const_value
    assert made.model.graph.initializers["w"] is not source.graph.initializers["w"]


def test_every_node_keeps_its_module() -> None:
    proto = model(CHAIN, w=W)
    for each in proto.graph.node:  # named as by an exporter, without tags
        each.name = "/" + each.metadata_props[0].value.replace(".", "/") + "/" + each.op_type
        del each.metadata_props[:]
    made = to_proto(cut(proto, "net.body").model)
    paths = [entry.value for each in made.graph.node for entry in each.metadata_props if entry.key == MODULE_PATH]
    assert paths == ["net.body.first", "net.body", "net.body.second"]


def test_a_value_that_leaves_and_comes_back_is_an_output_and_an_input() -> None:
    nodes = [node("Relu", "x", "a", "m"), node("Exp", "a", "b", ""), node("Neg", "b", "y", "m")]
    made = cut(model(nodes), "m")
    assert (made.inputs, made.outputs) == (("x", "b"), ("a", "y"))
    assert_correct_cut(made, all_values(model(nodes), {"x": np.ones((2, 4), np.float32)}))


SIZES = [
    node("Exp", "x", "a", "other"),
    node("Shape", "a", "s", "other"),
    node("Gather", "s zero", "rows", ""),
    node("Unsqueeze", "rows zero", "row", ""),
    node("Concat", "row minus", "target", "", axis=0),
    node("Reshape", "a target", "y", "m"),
]
CONSTANTS = {"zero": np.array(0), "minus": np.array([-1])}


def test_arithmetic_on_the_sizes_of_an_input_is_repeated_inside() -> None:
    proto = model([SIZES[0], node("Constant", "", "zero", "", value_int=0), *SIZES[1:]], minus=np.array([-1]))
    proto.graph.node[4].input[1] = "axis"
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    made = cut(proto, "m")
    assert made.inputs == ("a",)
    assert sorted(op_types(made)) == ["Concat", "Constant", "Gather", "Reshape", "Shape", "Unsqueeze"]
    assert_correct_cut(made, all_values(proto, {"x": np.ones((3, 4), np.float32)}))


def test_the_size_of_a_value_outside_becomes_an_input() -> None:
    nodes = [node("Transpose", "x", "a", "m"), node("Shape", "x", "s", ""), node("Relu", "a", "b", "n")]
    nodes.append(node("Reshape", "b s", "y", "n"))
    made = cut(model(nodes), "n")
    assert (made.inputs, op_types(made)) == (("a", "s"), ["Relu", "Reshape"])


@pytest.mark.parametrize(
    ("bounds", "given", "attributes"),
    [({}, "a", {}), ({"end": 1}, "a", {"start": 0, "end": 1}), ({"start": -2, "end": -1}, "t", {"start": 1, "end": 2})],
)
def test_a_size_is_measured_on_an_input_that_has_it(
    bounds: dict[str, int], given: str, attributes: dict[str, int]
) -> None:
    nodes = [
        node("Exp", "x", "a", "m"),
        node("Transpose", "x", "t", "m"),
        node("Shape", "x", "s", "", **bounds),
        node("Relu", given, "b", "n"),
        node("Expand", "b s", "y", "n"),
    ]
    proto = model(nodes)
    made = cut(proto, "n")
    assert (made.inputs, op_types(made)) == ((given,), ["Shape", "Relu", "Expand"])
    assert {name: attribute.value for name, attribute in made.model.graph[0].attributes.items()} == attributes
    assert_correct_cut(made, all_values(proto, {"x": np.ones((1, 4), np.float32)}))
    before = helper.make_opsetid("", 13)
    del proto.opset_import[:]
    proto.opset_import.append(before)
    assert cut(proto, "n").inputs == ((given,) if not attributes else (given, "s"))


def test_a_random_value_is_generated_once_outside() -> None:
    nodes = [node("RandomNormal", "", "r", "", shape=[2, 4]), node("Add", "x r", "y", "m")]
    assert cut(model(nodes), "m").inputs == ("x", "r")


def test_a_constant_that_others_read_is_not_an_output() -> None:
    nodes = [node("Constant", "", "one", "m", value_float=1.0), node("Add", "x one", "a", "m")]
    assert cut(model([*nodes, node("Mul", "a one", "y", "n")]), "m").outputs == ("a",)
    made = cut(model([*nodes, node("Mul", "a one", "y", "n")]), "n")
    assert (made.inputs, op_types(made)) == (("a",), ["Constant", "Mul"])
    assert cut(model([nodes[0], node("Mul", "x one", "y", "n")]), "m").outputs == ("one",)


def test_a_constant_that_callers_may_override_stays_one() -> None:
    proto = model(CHAIN, w=W)
    proto.graph.input.append(helper.make_tensor_value_info("w", F, [4]))
    made = cut(proto, "net.body")
    assert made.inputs == ("a", "w")
    assert "w" in made.model.graph.initializers


# Nodes of several modules, as after optimization


OTHER = node("Abs", "x", "w", "other")


def test_a_last_node_fused_with_what_follows_makes_the_cut_wider() -> None:
    nodes = [node("Exp", "x", "a", "p.m"), node("Mul", "a a", "b", "p.m", "p.n"), node("Neg", "b", "y", "p.n"), OTHER]
    made = cut(model(nodes), "p.m")
    assert (made.path, made.asked, made.straddling) == ("p", "p.m", ("Mul_b",))
    assert len(op_types(made)) == 3
    with pytest.raises(ModelError, match="Mul_b also does the work of other modules"):
        cut(model(nodes), "p.m", exact=True)


def test_a_first_node_fused_with_what_precedes_makes_the_cut_wider() -> None:
    nodes = [node("Exp", "x", "a", "p"), node("Mul", "a a", "b", "p", "p.m"), node("Neg", "b", "y", "p.m"), OTHER]
    assert cut(model(nodes), "p.m").path == "p"


def test_a_module_that_is_fused_away_is_found_in_what_contains_it() -> None:
    nodes = [node("Exp", "x", "a", "p.q"), node("Mul", "a a", "b", "p.m", "p.n"), node("Neg", "b", "y", "p"), OTHER]
    assert cut(model(nodes), "p.m").path == "p"


def test_a_cut_that_would_be_the_whole_model_is_refused_with_what_can_be_cut() -> None:
    fused = node("Mul", "a a", "b", "p.m.fc", "p.n")
    nodes = [node("Exp", "x", "a", "p.m.act"), fused, node("Neg", "b", "y", "p.n")]
    with pytest.raises(ModelError, match=r"only the whole model contains p\.m: Mul_b also does") as caught:
        cut(model(nodes), "p.m")
    assert caught.value.hint == "p.m.act can be extracted; optimizing with `keep_modules=p.m` keeps it separate"


SHARED = [
    node("Cast", "x", "c", "p.m", "p.n", to=F),
    node("Exp", "c", "a", "p.m"),
    node("Mul", "a c", "y", "p.n"),
]


def test_a_node_shared_by_two_modules_is_an_input_of_both() -> None:
    for module, inputs in (("p.m", ("c",)), ("p.n", ("a", "c"))):
        made = cut(model(SHARED), module, exact=True)
        assert (made.path, made.inputs, made.straddling) == (module, inputs, ())


def test_shared_nodes_behind_a_node_without_module_make_nothing_wider() -> None:
    nodes = [SHARED[0], node("Abs", "c", "e", ""), node("Exp", "e", "a", "p.m"), node("Mul", "a e", "y", "p.n")]
    assert cut(model(nodes), "p.m", exact=True).inputs == ("e",)


def test_a_shared_node_between_two_nodes_of_a_module_is_included() -> None:
    nodes = [
        node("Exp", "x", "a", "p.m"),
        node("Relu", "a", "b", "p.m", "p"),
        node("Neg", "b", "c", "p.m"),
        node("Add", "b c", "y", "p"),
    ]
    made = cut(model(nodes), "p.m", exact=True)
    assert (made.inputs, made.outputs, op_types(made)) == (("x",), ("b", "c"), ["Exp", "Relu", "Neg"])


def test_sizes_that_several_modules_share_make_nothing_wider() -> None:
    nodes = [node("Exp", "x", "a", "p.m"), node("Shape", "a", "s", "p.m", "p.n"), node("Reshape", "a s", "y", "p.n")]
    assert cut(model(nodes), "p.m", exact=True).outputs == ("a",)
    made = cut(model(nodes), "p.n", exact=True)
    assert (made.inputs, op_types(made)) == (("a",), ["Shape", "Reshape"])


# Modules that are called more than once

TWICE = [
    node("Mul", "x w", "a", "twice.lin"),
    node("Relu", "a", "b", ""),
    node("Mul", "b w", "y", "twice@1.lin"),
]


@pytest.mark.parametrize("path", ["twice", "twice.lin"])
def test_one_call_is_extracted_and_the_others_are_noted(path: str) -> None:
    first, second = cut(model(TWICE, w=W), path), cut(model(TWICE, w=W), path, call=1)
    assert (first.inputs, first.outputs, second.inputs, second.outputs) == (("x",), ("a",), ("b",), ("y",))
    assert (first.call, second.call, second.calls) == (0, 1, 2)
    assert first.notes == (f"{path} is called 2 times: this is call 0",)
    with pytest.raises(UsageError, match="has no call 2: it was called 2 times"):
        cut(model(TWICE, w=W), path, call=2)


def test_nodes_shared_by_two_calls_widen_the_cut_to_the_module_of_both() -> None:
    nodes = [
        node("Mul", "x w", "a", "p.twice.lin"),
        node("Add", "a x", "b", "p.twice", "p.twice@1"),
        node("Mul", "b w", "c", "p.twice@1.lin"),
        node("Neg", "c", "y", ""),
    ]
    made = cut(model(nodes, w=W), "p.twice")
    assert (made.path, made.outputs) == ("p", ("c",))


def test_a_module_that_owns_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match=r"net\.tail owns no node") as caught:
        cut(model(CHAIN, w=W), "net.tail")
    assert "inspect" in (caught.value.hint or "")


# Bodies and functions


def body(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(output, F, None)])


def test_what_a_body_captures_crosses_the_boundary() -> None:
    nodes = [
        node("Exp", "x", "a", "other"),
        node(
            "If", "yes", "y", "m",
            then_branch=body([node("Mul", "a w", "t", "m.inner")], "t"),
            else_branch=body([node("Neg", "a", "e", "m.inner")], "e"),
        ),
    ]  # fmt: skip
    proto = model(nodes, w=W, yes=np.array(True))
    made = cut(proto, "m")
    assert (made.inputs, sorted(made.model.graph.initializers)) == (("a",), ["w", "yes"])
    assert_correct_cut(made, all_values(proto, {"x": np.ones((2, 4), np.float32)}))
    assert cut(proto, "m.inner").path == "m"  # a body cannot be cut out of the node that holds it


def test_functions_are_included_if_they_are_called() -> None:
    proto = model([node("Exp", "x", "a", "other"), node("Twice", "a", "y", "m", domain="own")])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for name, calls in (("Twice", "Inner"), ("Inner", "Relu"), ("Unused", "Relu")):
        domain = "own" if calls == "Inner" else ""
        step = helper.make_node(calls, ["p"], ["q"], domain=domain)
        proto.functions.append(helper.make_function("own", name, ["p"], ["q"], [step], imports))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    made = cut(proto, "m")
    assert sorted(each.name for each in made.model.functions.values()) == ["Inner", "Twice"]
    assert not cut(proto, "other").model.functions
    values = all_values(proto, {"x": np.ones((2, 4), np.float32)})
    (result,) = Session(to_proto(made.model)).run({"a": values["a"]})
    np.testing.assert_array_equal(np.asarray(result), values["y"])


def test_weights_of_a_file_stay_in_it(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    onnx.save(
        model([node("Exp", "x", "a", "p"), node("MatMul", "a w", "y", "m")], w=np.ones((4, 2000), np.float32)), path
    )
    source = load(path)
    made = extract(source, origins.attach(source), "m")
    weight = made.model.graph.initializers["w"].const_value
    assert weight is source.graph.initializers["w"].const_value
    assert type(weight).__name__ == "FileTensor"


@pytest.mark.slow
@settings(max_examples=12)
@given(models())
def test_every_module_of_any_graph_computes_alone_what_it_computes_in_the_whole(proto: onnx.ModelProto) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in proto.graph.input
    }
    small = sardonyx.optimize(proto, verify="off").model
    assert small is not None
    for source in (proto, to_proto(small)):
        values = all_values(source, feeds)
        loaded = from_proto(source)
        hierarchy = origins.attach(loaded)
        for path in {module_of(path) for each in loaded.graph for path in origins.origins(each)}:
            made = _cut_unless_whole(loaded, hierarchy, path)
            assert made is not None or source is not proto
            if made is not None:
                assert_correct_cut(made, values)


def _cut_unless_whole(loaded: ir.Model, hierarchy: Hierarchy, path: str) -> Extract | None:
    try:
        return extract(loaded, hierarchy, path)
    except ModelError as error:
        if "only the whole model" not in error.message:
            raise
        return None


def test_sizes_computed_outside_take_time_linear_in_their_number() -> None:
    """Every step reads the step before it twice, so there are 2 ** 60 paths through the steps."""
    nodes = [node("Relu", "x", "a", "net.m"), node("Shape", "a", "s0", "net")]
    for step in range(60):
        nodes += [
            node("Mul", f"s{step} one", f"u{step}", "net"),
            node("Add", f"s{step} zero", f"v{step}", "net"),
            node("Max", f"u{step} v{step}", f"s{step + 1}", "net"),
        ]
    nodes += [node("Reshape", "a s60", "b", "net.m"), node("Neg", "b", "y", "net")]
    made = cut(model(nodes, one=np.array([1, 1]), zero=np.array([0, 0])), "net.m")
    assert (made.inputs, made.outputs) == (("x",), ("b",))
