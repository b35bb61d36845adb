"""Loading and saving without passes preserves everything that a file can contain."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from onnx import external_data_helper as external

from ir.proto_strategies import models
from sardonyx.ir import io

SHIPPED = sorted(Path(onnx.__file__).parent.rglob("*.onnx"))


def content(proto: onnx.ModelProto) -> bytes:
    """Equal for equal messages including NaN, unlike ==."""
    return proto.SerializeToString(deterministic=True)


def through_files(proto: onnx.ModelProto, folder: Path, *, outside: bool | None) -> onnx.ModelProto:
    (folder / "in.onnx").write_bytes(proto.SerializeToString())
    io.save(io.load(folder / "in.onnx"), folder / "out.onnx", external=outside, force=True)
    return onnx.load(folder / "out.onnx", load_external_data=False)


def node_cases() -> Iterator[tuple[str, onnx.ModelProto]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their expected outputs, with overflows
        from onnx.backend.test.case.node import collect_testcases

        for case in collect_testcases(None):
            assert case.model is not None
            yield case.name, case.model


def test_the_onnx_package_ships_models() -> None:
    assert len(SHIPPED) > 100


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_every_shipped_file_comes_back_equal(path: Path, tmp_path: Path) -> None:
    io.save(io.load(path), tmp_path / "out.onnx")
    assert content(onnx.load(tmp_path / "out.onnx")) == content(onnx.load(path))


def test_every_node_test_case_comes_back_equal() -> None:
    count = 0
    for name, proto in node_cases():
        before = content(proto)
        model = io.from_proto(proto)
        assert content(io.to_proto(model)) == before, name
        assert content(io.to_proto(model.clone())) == before, f"{name}, cloned"
        assert content(proto) == before, f"{name}: the proto was changed"
        count += 1
    assert count > 1500


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(proto=models())
def test_any_model_comes_back_equal_from_memory(proto: onnx.ModelProto) -> None:
    before = content(proto)
    model = io.from_proto(proto)
    assert content(io.to_proto(model)) == before
    assert content(io.to_proto(model.clone())) == before
    assert content(io.to_proto(model.clone(deep_copy=True))) == before
    assert content(proto) == before


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(proto=models())
def test_any_model_comes_back_equal_from_a_file(proto: onnx.ModelProto) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert content(through_files(proto, Path(folder), outside=None)) == content(proto)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(proto=models())
def test_any_model_survives_external_data_and_back(proto: onnx.ModelProto) -> None:
    """Saved with external data and loaded again. A typed field may become raw, so values are compared."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outside = through_files(proto, folder, outside=True)
        if any(map(external.uses_external_data, external._get_all_tensors(outside))):
            assert (folder / "out.onnx.data").exists()
        io.save(io.load(folder / "out.onnx"), folder / "back.onnx", external=False)
        back = onnx.load(folder / "back.onnx", load_external_data=False)
        assert content(raw_only(back)) == content(raw_only(proto))


def with_node(**fields: Any) -> onnx.ModelProto:
    """A model of one node with only these fields."""
    values: dict[str, Any] = {"op_type": "Abs", "input": ["x"], "output": ["y"], **fields}
    node = onnx.NodeProto(**values)
    graph = onnx.GraphProto(node=[node], input=[onnx.ValueInfoProto(name="x")], output=[onnx.ValueInfoProto(name="y")])
    return onnx.ModelProto(ir_version=8, opset_import=[onnx.OperatorSetIdProto(version=17)], graph=graph)


@pytest.mark.parametrize(
    "fields",
    [
        {"domain": "ai.onnx"},
        {"domain": ""},
        {"name": ""},
        {"op_type": None},
        {"output": ["y", "", ""]},
        {"metadata_props": [onnx.StringStringEntryProto(key="k", value=value) for value in "ab"]},
        {"metadata_props": [onnx.StringStringEntryProto(key=key, value="v") for key in "ba"]},
        {"metadata_props": [onnx.StringStringEntryProto(key="k")]},
        *(
            {"attribute": [onnx.AttributeProto(name="a", type=kind)]}
            for kind in onnx.AttributeProto.AttributeType.keys()  # noqa: SIM118
            if kind not in ("GRAPH", "SPARSE_TENSOR", "TENSOR")
        ),
        {"attribute": [onnx.AttributeProto(name="a", i=3)]},
        {"attribute": [onnx.AttributeProto(name="a", i=3, f=2, type="INT")]},
        {"attribute": [onnx.AttributeProto(name="a", f=float("nan"), type="FLOAT")]},
        {"attribute": [onnx.AttributeProto(name="a", strings=[b"\xff"], type="STRINGS")]},
    ],
    ids=str,
)
def test_unusual_nodes_come_back_equal(fields: dict[str, Any]) -> None:
    proto = with_node(**fields)
    assert content(io.to_proto(io.from_proto(proto).clone())) == content(proto)


def test_metadata_keeps_its_order_in_each_declaration_of_a_value() -> None:
    proto = with_node()
    for declaration, keys in ((proto.graph.input[0], "b"), (proto.graph.output.add(name="x"), "ab")):
        declaration.metadata_props.extend(onnx.StringStringEntryProto(key=key, value="v") for key in keys)
    assert content(io.to_proto(io.from_proto(proto))) == content(proto)


def raw_only(proto: onnx.ModelProto) -> onnx.ModelProto:
    """With large packed floats as raw bytes and without the explicit default location, which external data drops."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in all_tensors(copy):
        tensor.ClearField("data_location")
        for field, width in (("float_data", "<f4"), ("double_data", "<f8")):
            if values := list(getattr(tensor, field)):
                raw = np.array(values, width).tobytes()
                tensor.ClearField(field)
                tensor.raw_data = raw
    return copy


def all_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for child in value if descriptor.is_repeated else [value]:
            yield from all_tensors(child)
