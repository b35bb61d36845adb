"""Hypothesis strategies for small ModelProtos that use every part of the format, including unusual encodings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
NAMES = st.sampled_from(["a", "b", "c", "scale", "x/y", "ä", "w.0"])
DTYPES = [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]
_SIX_BIT = (ir.DataType.FLOAT6E2M3, ir.DataType.FLOAT6E3M2)
_TYPED = {
    ir.DataType.FLOAT: "float_data", ir.DataType.COMPLEX64: "float_data", ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data", ir.DataType.INT64: "int64_data", ir.DataType.UINT64: "uint64_data",
    ir.DataType.UINT32: "uint64_data",
}  # fmt: skip


@st.composite
def props(draw: st.DrawFn) -> list[onnx.StringStringEntryProto]:
    """Metadata, sometimes with an incomplete or duplicate entry."""
    keys = draw(st.lists(NAMES, max_size=3))
    entries = [onnx.StringStringEntryProto(key=key, value=draw(TEXT)) for key in keys]
    if entries and draw(st.integers(0, 9)) == 0:
        entries[0].ClearField(draw(st.sampled_from(["key", "value"])))
    return entries


def maybe(draw: st.DrawFn, proto: Any, *fields: str) -> Any:
    """Set some string fields, possibly to the empty string."""
    for field in fields:
        if draw(st.integers(0, 3)) == 0:
            setattr(proto, field, draw(TEXT))
    if "metadata_props" in proto.DESCRIPTOR.fields_by_name and draw(st.booleans()):
        proto.metadata_props.extend(draw(props()))
    return proto


@st.composite
def tensors(draw: st.DrawFn, name: str | None = None) -> TensorProto:
    """A tensor of any type, as raw bytes or in a typed field, small or large enough to be left on disk."""
    proto = TensorProto() if name is None else TensorProto(name=name)
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    if draw(st.integers(0, 4)) == 0:
        shape = [64, 17 + draw(st.integers(0, 60))]
    proto.dims.extend(shape)
    count = math.prod(shape)
    if draw(st.integers(0, 6)) == 0:
        proto.data_type = TensorProto.STRING
        proto.string_data.extend(draw(st.binary(max_size=4)) for _ in range(count))
        return maybe(draw, proto, "doc_string")
    dtype = draw(st.sampled_from(DTYPES))
    proto.data_type = dtype.value
    seed = draw(st.integers(0, 2**16))
    data = np.random.default_rng(seed).integers(0, 255, (count * dtype.bitwidth + 7) // 8, np.uint8)
    if draw(st.booleans()) or dtype in _SIX_BIT:
        if dtype in _SIX_BIT:
            data[:] = 0  # the padding bits must be zero
        proto.raw_data = data.tobytes()
    elif dtype in _TYPED:
        width = {"float_data": "f4", "double_data": "f8", "int64_data": "i8", "uint64_data": "u8"}[_TYPED[dtype]]
        values = data.view("u4" if dtype == ir.DataType.UINT32 else width)
        getattr(proto, _TYPED[dtype]).extend(values.tolist())
    else:
        values = data.view(f"u{max(dtype.bitwidth // 8, 1)}").astype(np.int64)
        proto.int32_data.extend((values - (1 << 32) * (values >= 1 << 31)).tolist())
    if draw(st.integers(0, 9)) == 0:
        proto.data_location = TensorProto.DEFAULT
    return maybe(draw, proto, "doc_string")


@st.composite
def sparse_tensors(draw: st.DrawFn, name: str = "") -> onnx.SparseTensorProto:
    count = draw(st.sampled_from([0, 2, 1100]))
    values = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[count], raw_data=np.ones(count, "f4").tobytes())
    indices = TensorProto(data_type=TensorProto.INT64, dims=[count], int64_data=range(count))
    return onnx.SparseTensorProto(values=maybe(draw, values, "doc_string"), indices=indices, dims=[40, 40])


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    kinds = ["tensor_type", "sparse_tensor_type", "opaque_type", "nothing"]
    kind = draw(
        st.sampled_from([*kinds, "tensor_type", "sequence_type", "optional_type", "map_type"] if depth else kinds)
    )
    if kind in ("tensor_type", "sparse_tensor_type"):
        leaf = getattr(proto, kind)
        leaf.SetInParent()
        if draw(st.integers(0, 6)):
            leaf.elem_type = draw(st.sampled_from(DTYPES)).value
        if draw(st.booleans()):
            leaf.shape.SetInParent()
            for _ in range(draw(st.integers(0, 3))):
                dim = leaf.shape.dim.add()
                match draw(st.integers(0, 2)):
                    case 0:
                        dim.dim_value = draw(st.integers(-1, 5))
                    case 1:
                        dim.dim_param = draw(TEXT)
                    case _:
                        pass
                maybe(draw, dim, "denotation")
    elif kind in ("sequence_type", "optional_type"):
        getattr(proto, kind).SetInParent()
        if draw(st.integers(0, 4)):
            getattr(proto, kind).elem_type.CopyFrom(draw(types(depth - 1)))
    elif kind == "map_type":
        proto.map_type.key_type = TensorProto.INT64
        proto.map_type.value_type.CopyFrom(draw(types(depth - 1)))
    elif kind == "opaque_type":
        maybe(draw, proto.opaque_type, "domain", "name").SetInParent()
    return maybe(draw, proto, "denotation")


@st.composite
def value_infos(draw: st.DrawFn, name: str) -> onnx.ValueInfoProto:
    proto = onnx.ValueInfoProto(name=name)
    if draw(st.booleans()):
        proto.type.CopyFrom(draw(types()))
    return maybe(draw, proto, "doc_string")


@st.composite
def attributes(draw: st.DrawFn, name: str, scope: list[str], depth: int) -> AttributeProto:
    proto = AttributeProto(name=name)
    strategies: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
        "f": ("FLOAT", st.floats(width=32)),
        "i": ("INT", st.integers(-(2**63), 2**63 - 1)),
        "s": ("STRING", st.binary(max_size=4)),
        "t": ("TENSOR", tensors()),
        "tp": ("TYPE_PROTO", types()),
        "sparse_tensor": ("SPARSE_TENSOR", sparse_tensors()),
        "floats": ("FLOATS", st.floats(width=32)),
        "ints": ("INTS", st.integers(-5, 5)),
        "strings": ("STRINGS", st.binary(max_size=4)),
        "tensors": ("TENSORS", tensors()),
        "type_protos": ("TYPE_PROTOS", types()),
        "sparse_tensors": ("SPARSE_TENSORS", sparse_tensors()),
    }
    if depth:
        strategies["g"] = ("GRAPH", graphs(scope, depth - 1))
        strategies["graphs"] = ("GRAPHS", graphs(scope, depth - 1))
    field = draw(st.sampled_from(list(strategies)))
    kind, values = strategies[field]
    if kind.endswith("S"):
        getattr(proto, field).extend(draw(st.lists(values, max_size=2)))
    elif field in "fis":
        setattr(proto, field, draw(values))
    else:
        getattr(proto, field).CopyFrom(draw(values))
    if draw(st.integers(0, 9)):  # the first ONNX files store no attribute type
        proto.type = getattr(AttributeProto, kind)
    return maybe(draw, proto, "doc_string")


@st.composite
def nodes(draw: st.DrawFn, outputs: list[str], scope: list[str], depth: int) -> onnx.NodeProto:
    proto = onnx.NodeProto(op_type=draw(st.sampled_from(["Plus", "Custom", "Branch"])), output=outputs)
    proto.input.extend(draw(st.lists(st.sampled_from(["", *scope]), max_size=3)))
    proto.output.extend([""] * draw(st.integers(0, 2)))
    for name in draw(st.lists(NAMES, max_size=2, unique=True)):
        proto.attribute.append(draw(attributes(name, scope, depth)))
    if draw(st.integers(0, 5)) == 0:
        proto.domain = draw(st.sampled_from(["", "ai.onnx", "my.domain"]))
    if draw(st.integers(0, 9)) == 0:
        sharding = onnx.ShardingSpecProto(tensor_name="anything", device=[0, 1])
        proto.device_configurations.add(configuration_id="two", sharding_spec=[sharding], pipeline_stage=1)
    return maybe(draw, proto, "name", "doc_string", "overload")


@st.composite
def graphs(draw: st.DrawFn, outer: list[str] | None = None, depth: int = 1) -> onnx.GraphProto:
    """A graph whose names are all defined; its bodies may read the values around them."""
    proto = onnx.GraphProto()
    level = f"d{depth}_"
    inputs = [f"{level}in{i}" for i in range(draw(st.integers(0, 2)))]
    weights = [f"{level}w{i}" for i in range(draw(st.integers(0, 2)))] + (inputs[:1] if draw(st.booleans()) else [])
    proto.input.extend(draw(value_infos(name)) for name in inputs)
    for name in weights:
        if draw(st.integers(0, 4)) == 0:
            proto.sparse_initializer.append(draw(sparse_tensors(name)))
        else:
            proto.initializer.append(draw(tensors(name)))
    scope: list[str] = list(dict.fromkeys([*(outer or []), *inputs, *weights]))
    own: list[str] = list(dict.fromkeys([*inputs, *weights]))
    for i in range(draw(st.integers(0, 3))):
        made = [f"{level}n{i}_{j}" for j in range(draw(st.integers(0, 2)))]
        proto.node.append(draw(nodes(made, scope, depth)))
        scope += made
        own += made
    if own:
        proto.output.extend(
            draw(value_infos(name)) for name in draw(st.lists(st.sampled_from(own), max_size=2, unique=True))
        )
        listed = draw(st.lists(st.sampled_from([*own, "f::g/h", "gone"]), max_size=4))
        proto.value_info.extend(draw(value_infos(name)) for name in listed)
        for name in draw(st.lists(st.sampled_from([*own, "gone"]), max_size=2)):
            proto.quantization_annotation.add(tensor_name=name, quant_parameter_tensor_names=draw(props()))
    return maybe(draw, proto, "name", "doc_string")


@st.composite
def functions(draw: st.DrawFn, name: str) -> onnx.FunctionProto:
    proto = onnx.FunctionProto(name=name, input=["p", "q"], attribute=draw(st.lists(NAMES, max_size=2, unique=True)))
    proto.opset_import.add(version=draw(st.integers(1, 26)))
    proto.node.append(draw(nodes(["r"], ["p", "q"], 1)))
    if proto.attribute:
        reference = AttributeProto(name="by_reference", ref_attr_name=proto.attribute[0], type=AttributeProto.INT)
        proto.node[0].attribute.append(reference)
    proto.output.append("r")
    if draw(st.booleans()):
        proto.attribute_proto.append(draw(attributes("with_default", [], 0)))
    proto.value_info.extend(
        draw(value_infos(n)) for n in draw(st.lists(st.sampled_from(["p", "r", "gone"]), max_size=3))
    )
    return maybe(draw, proto, "doc_string", "domain", "overload")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A whole model."""
    proto = onnx.ModelProto(ir_version=draw(st.integers(3, 13)), graph=draw(graphs()))
    domain = draw(st.sampled_from(["", "ai.onnx", None]))
    proto.opset_import.add(domain=domain, version=draw(st.integers(1, 26)))
    if draw(st.booleans()):
        proto.opset_import.add(domain="my.domain", version=1)
    proto.functions.extend(draw(functions(f"f{i}")) for i in range(draw(st.integers(0, 2))))
    for _ in range(draw(st.integers(0, 1))):
        training = proto.training_info.add(update_binding=draw(props()))
        if draw(st.booleans()):
            training.algorithm.CopyFrom(draw(graphs()))
    if draw(st.booleans()):
        proto.model_version = draw(st.integers(0, 3))
    if draw(st.integers(0, 3)) == 0:
        proto.configuration.add(name="two", num_devices=2, device=["cpu", "gpu"])
    return maybe(draw, proto, "producer_name", "producer_version", "domain", "doc_string")
