"""Small functions of the graph, each in cases that one condition tells apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from passes.util import graph_text, parse, run_passes
from raised import raise_model, raised
from sardonyx.errors import ModelError, UsageError
from sardonyx.ir import device, io
from sardonyx.ir.checks import _flaw  # pyright: ignore[reportPrivateUsage]
from sardonyx.ir.expressions import known, literal
from sardonyx.ir.facts import Facts
from sardonyx.ir.io.data_files import external_files
from sardonyx.ir.module_borders import find_modules
from sardonyx.ir.opset_raising import NEWEST, OLDEST, CannotRaise, plan
from sardonyx.ir.origins import (
    _follows_product,  # pyright: ignore[reportPrivateUsage]
    distinct_labels,
)
from sardonyx.ir.plain_data import elements, scalar, tensor_value, value_type
from sardonyx.ir.precision import GUARD, Impossible, scaled
from sardonyx.ir.scopes import is_constant
from sardonyx.ir.shapes import expr
from sardonyx.ir.storage import SourceFile
from sardonyx.ir.tensors import FileTensor
from sardonyx.passes import ALL
from sardonyx.records.inspection import TensorValue
from sardonyx.records.provenance import Hierarchy, ModuleTable
from sardonyx.records.run import RewriteKind


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a/x.onnx", "b/y.onnx"], ["x.onnx", "y.onnx"]),
        (["a/x.onnx", "b/x.onnx"], ["a/x.onnx", "b/x.onnx"]),
        (["x.onnx", "x.onnx"], ["x.onnx (1)", "x.onnx (2)"]),
        (["a/", "b/"], ["a/", "b/"]),
        ([], []),
    ],
)
def test_labels_are_distinct(names: list[str], labels: list[str]) -> None:
    assert distinct_labels(names) == labels


@pytest.mark.parametrize(
    ("array", "flaw"),
    [
        ([0.0, 1.2e-38], None),
        ([0.0, 1e-40], "subnormal numbers"),
        ([0.0, 0.0], None),
        ([1e-40, 1.0], None),  # lost beside a number far larger
        ([-1e-40, -1.0], None),
        ([1.0, np.inf], "infinities or NaN"),
        ([1.0, -np.inf], "infinities or NaN"),
        ([1.0, np.nan], "infinities or NaN"),
        ([2.0**-126, 0.0], None),
        ([2.0**-127, 2.0**-126 * GUARD], None),
        ([2.0**-127, 2.0**-126 * GUARD / 2], "subnormal numbers"),
        ([], None),
    ],
)
def test_only_overflow_and_lost_precision_are_flaws(array: list[float], flaw: str | None) -> None:
    assert _flaw(ir.tensor(np.array(array, np.float32))) == flaw
    assert _flaw(ir.tensor(np.array([0, 1]))) is None


@pytest.mark.parametrize(
    ("column", "factor", "fits"),
    [
        ([1.0, 1e-6], 2.0**-120, True),  # the product of the second is lost beside the first
        ([1.0, 1e-6], 2.0**-125, False),
        ([1.0, 1.0], 2.0**-125, True),
        ([1.0, 0.0], 2.0**-125, True),
        ([1.0, 1.0], 2.0**-130, True),  # subnormal, and exact
        ([1.0, 1 / 3], 2.0**-130, False),
        ([1.0, 1.0], 2.0**122, False),  # too near to the largest number
        ([2.0**125, 1.0], 1.0, True),  # as it was before
        ([0.0, 0.0], 2.0**-140, True),
        ([1.0, 1.0], 0.0, True),
        ([1.0, 1.0], 2.0**128, False),
        ([1.0, 1.0], float("nan"), False),
        ([2.0**-120, 2.0**-120], float("inf"), False),
    ],
)
def test_weights_are_scaled_if_no_sum_shows_it(column: list[float], factor: float, fits: bool) -> None:
    weight = ir.tensor(np.array([column], np.float32).T)
    try:
        made = scaled(weight, literal(np.array([[factor]])))
    except Impossible:
        assert not fits
    else:
        assert fits
        assert np.isfinite(made.numpy()).all()


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "reason"),
    [
        ("Pad", 10, {}, "it has no pads"),
        ("Slice", 9, {"starts": [0]}, "it has no starts or ends"),
        ("Slice", 9, {"ends": [0]}, "it has no starts or ends"),
        ("TopK", 9, {}, "it has no k"),
    ],
)
def test_nodes_that_lack_an_attribute_are_not_raised(
    op_type: str, opset: int, attributes: dict[str, Any], reason: str
) -> None:
    """Models in memory may lack one; files that do are refused."""
    proto = parse(graph_text("agraph (float[4] x) => (float[A] y) { y = Relu(x) }"))
    proto.opset_import[0].version = opset
    outputs = ["y", "i"] if op_type == "TopK" else ["y"]
    proto.graph.node[0].CopyFrom(helper.make_node(op_type, ["x"], outputs, **attributes))
    log = raise_model(ir.from_proto(proto), 13)
    assert reason in log.refusals[0].reason


@pytest.mark.parametrize(("op_type", "inputs"), [("ReduceSum", 1), ("Squeeze", 1), ("Unsqueeze", 2)])
def test_an_empty_list_of_axes_means_all_except_for_new_ones(op_type: str, inputs: int) -> None:
    proto = parse(graph_text("agraph (float[1, 1] x) => (float y) { y = Relu(x) }"))
    proto.opset_import[0].version = 11
    proto.graph.node[0].CopyFrom(helper.make_node(op_type, ["x"], ["y"]))
    proto.graph.node[0].attribute.append(onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    after, why = raised(proto, 13)
    assert after is not None, why
    assert len(after.graph.node[-1].input) == inputs


def test_only_a_constant_of_the_standard_is_one() -> None:
    assert is_constant(ir.node("Constant", [], {"value": ir.tensor([1.0])}))
    assert not is_constant(ir.node("Constant", [], domain="own"))
    assert not is_constant(ir.node("ConstantOfShape", []))


@pytest.mark.parametrize("size", [1, 16, 17, 1600])
def test_small_tensors_are_shown_whole(size: int, tmp_path: Path) -> None:
    array = np.arange(size, dtype=np.float32)
    assert tensor_value(ir.tensor(array)) == TensorValue(
        "float", (size,), tuple(array.tolist()) if size <= 16 else None
    )
    (tmp_path / "f").write_bytes(array.tobytes())
    file = FileTensor(SourceFile.open(str(tmp_path / "f")), 0, array.nbytes, ir.DataType.FLOAT, (size,))
    assert tensor_value(file).value is None


def test_elements_are_shown_as_json_can_hold_them() -> None:
    items = [b"a\xff", "b", True, np.bool_(False), 3, np.int8(-4), 2.5, np.float16(0.5), float("inf"), float("nan"), 1j]
    shown = ["a\ufffd", "b", 1, 0, 3, -4, 2.5, 0.5, "inf", "nan", "1j"]
    assert [scalar(item) for item in items] == shown
    assert [type(scalar(item)) for item in items] == list(map(type, shown))
    assert elements(np.array([[1, 2], [3, 4]])) == (1, 2, 3, 4)
    N = expr.symbol("N")
    assert value_type(ir.DataType.FLOAT, (N, expr.unknown(1), 3)) == "float[N,?,3]"
    assert value_type(ir.DataType.FLOAT, ()) == "float[]"
    assert value_type(None, ()) is value_type(ir.DataType.FLOAT, None) is None


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("layer", "did you mean encoder.layer or"),
        ("self", "did you mean encoder.layer.0.self"),
        ("*.self", "* matches one part of a name"),
        ("encoder.*.self.x", "did you mean encoder.layer.0.self or"),
    ],
)
def test_only_a_glob_is_answered_with_a_glob(wanted: str, hint: str) -> None:
    hierarchy = Hierarchy([], ModuleTable.from_json(None))
    with pytest.raises(UsageError) as caught:
        find_modules(hierarchy, ["encoder.layer.0.self", "encoder.layer.1.out"], wanted)
    assert hint in (caught.value.hint or "")


def test_a_view_of_a_file_is_saved_beside_a_model(tmp_path: Path) -> None:
    """It has no message of its own, whose other fields would be kept."""
    array = np.arange(2000, dtype=np.float32)
    proto = onnx.parser.parse_model(graph_text("agraph (float[2000] x) => (float[2000] y) { y = Add(x, x) }"))
    proto.graph.node[0].input[1] = "w"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    io.save(io.from_proto(proto), tmp_path / "a.onnx")
    model = io.load(tmp_path / "a.onnx")
    value = model.graph.initializers["w"]
    stored = value.const_value
    assert isinstance(stored, FileTensor)
    value.const_value = stored.reshaped((2000,))
    io.save(model, tmp_path / "b.onnx", external=True)
    assert external_files(tmp_path / "b.onnx") == ["b.onnx.data"]
    again = io.load(tmp_path / "b.onnx").graph.initializers["w"].const_value
    assert again is not None
    np.testing.assert_array_equal(again.numpy(), array)


def test_systems_without_a_copy_in_the_kernel_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(bytes(range(200)))
    monkeypatch.delattr(os, "copy_file_range")
    with open(tmp_path / "g", "w+b") as target:
        SourceFile.open(str(tmp_path / "f")).copy(10, 100, target.fileno(), 3)
    assert (tmp_path / "g").read_bytes() == bytes(3) + bytes(range(10, 110))


def test_a_rewrite_that_keeps_another_node_shares_it() -> None:
    text = graph_text("agraph (float[2] x) => (float[2] y) { a = Exp(x)  b = Exp(x)  y = Add(a, b) }")
    _, log = run_passes(text, [one for one in ALL if one.name == "share-subexpressions"])
    assert [event.kind for event in log.events] == [RewriteKind.SHARE]


@pytest.mark.parametrize("name", device.names())
def test_every_device_is_a_target(name: str) -> None:
    target = device.target_named(name)
    profile = device.read_profile(name)
    assert target.device == profile
    assert target.operators == ("ort" if profile.is_ort else "portable")


def test_what_is_no_target_is_an_error(tmp_path: Path) -> None:
    for name in ("portable", "ort"):
        assert device.target_named(name) == device.Target(name, name)
    (tmp_path / "own.json").write_text("{}")
    for wrong in ("nowhere", str(tmp_path / "no.json"), str(tmp_path / "own.json")):
        with pytest.raises(UsageError):
            device.target_named(wrong)
        with pytest.raises(UsageError):
            device.read_profile(wrong)


def test_what_an_expression_reads_twice_is_written_once() -> None:
    number = ir.tensor(np.array([2.0]))
    root = known(number).root()
    nodes = ((root + root) * root).nodes("y", lambda _: None)
    assert [node.op_type for node in nodes] == ["Constant", "Cast", "Sqrt", "Add", "Mul"]
    nodes = (known(number) + known(number)).nodes("y", lambda _: "x")
    assert [list(node.input) for node in nodes[:2]] == [["x"], ["x"]]


@pytest.mark.parametrize(
    ("between", "follows"),
    [
        ("Add", True), ("Transpose", True), ("Cast", True), ("Dropout", True), ("BatchNormalization", True),
        ("Reshape", True), ("Softmax", False), ("Exp", False), ("Concat", False), ("MatMul", True), ("own.Exp", True),
    ],
)  # fmt: skip
def test_a_product_is_looked_for_through_what_optimizers_absorb(between: str, follows: bool) -> None:
    domain, _, op_type = between.rpartition(".")
    product = ir.node("MatMul", [ir.val("x"), ir.val("w")])
    inner = ir.node(op_type, [product.outputs[0], None], domain=domain)
    assert _follows_product(ir.node("Add", [ir.val("b"), inner.outputs[0]])) == follows
    assert not _follows_product(product)


def test_what_is_learned_of_a_value_is_written() -> None:
    """A type, a shape, documentation, or metadata; of a weight only metadata, and of outputs nothing besides."""
    text = (
        "agraph (float[N] x) => (float[N] y) <float[1] w = {1}> { a = Add(x, w)  b = Neg(a)  c = Abs(b)  y = Exp(c) }"
    )
    model = io.from_proto(onnx.parser.parse_model(graph_text(text)))
    assert not io.to_proto(model).graph.value_info
    values = {value.name: value for node in model.graph for value in node.outputs}
    values["a"].type = ir.TensorType(ir.DataType.FLOAT)
    values["b"].metadata_props["k"] = "v"
    values["c"].doc_string = "text"
    values["y"].metadata_props["k"] = "v"
    assert [info.name for info in io.to_proto(model).graph.value_info] == ["a", "b", "c"]
    weight = model.graph.initializers["w"]
    weight.doc_string = "text"
    assert [info.name for info in io.to_proto(model).graph.value_info] == ["a", "b", "c"]
    weight.metadata_props["k"] = "v"
    assert sorted(info.name for info in io.to_proto(model).graph.value_info) == ["a", "b", "c", "w"]


def test_types_that_a_function_declares_are_not_used() -> None:
    """Not even those of results of unknown operators, which are used in the main graph."""
    text = """<ir_version: 10, opset_import: ["" : 18, "my" : 1, "other" : 1]>
        g (float[2] x) => (float[2] y, float[2] z) <float[2] a> { y = my.F(x)  a = other.G(x)  z = Neg(a) }
        <domain: "my", opset_import: ["" : 18, "other" : 1]>
        F (x) => (y) { b = other.G(x)  y = Neg(b) }"""
    proto = onnx.parser.parse_model(text)
    proto.functions[0].value_info.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2]))
    facts = Facts(io.from_proto(proto))
    facts.infer()
    nodes = {node.outputs[0].name: node for scope in facts.scopes.values() for node in scope.graph}
    known = {name: (facts.dtype(node.outputs[0]), facts.shape(node.outputs[0])) for name, node in nodes.items()}
    assert known["a"] == known["z"] == (ir.DataType.FLOAT, (2,))
    assert known["b"] == (None, None)


@pytest.mark.parametrize(("old", "new"), [(6, 13), (18, 18), (18, 17), (18, 24), (23, 24)])
def test_models_are_raised_between_the_opsets_whose_changes_are_known(old: int, new: int) -> None:
    proto = parse(graph_text("agraph (float[4] x) => (float[4] y) { y = Relu(x) }"))
    proto.opset_import[0].version = old
    with pytest.raises(CannotRaise, match=f"opset {old} is not raised"):
        plan(Facts(io.from_proto(proto)), {}, new)
    proto.opset_import[0].version = OLDEST
    assert plan(Facts(io.from_proto(proto)), {}, NEWEST).new == NEWEST


@pytest.mark.parametrize("key", ["location", "offset", "length", "checksum"])
def test_references_that_are_no_text_are_refused(key: str, tmp_path: Path) -> None:
    weight = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for name in dict.fromkeys(("location", key)):
        weight.external_data.add(key=name, value="QQQQ" if name == key else "w.bin")
    proto = onnx.parser.parse_model(graph_text("agraph (float[4] x) => (float[4] y) { y = Relu(x) }"))
    proto.graph.initializer.append(weight)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ModelError, match="text that is not UTF-8"):
        io.load(tmp_path / "m.onnx")
