"""Encode the graph in memory as ModelProto messages: skeletons that are filled with their content.

The skeleton of an object is its message without the graphs and tensors inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ModelError
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.io.unmodeled_fields import without
from sardonyx.ir.scopes import defined
from sardonyx.ir.tensors import KEPT, ProtoTensor, SparseTensor, string_bytes

Kind = ir.AttributeType

# attributes with content that a skeleton omits
WITH_CONTENT = frozenset((Kind.GRAPH, Kind.GRAPHS, Kind.TENSOR, Kind.TENSORS, Kind.SPARSE_TENSOR, Kind.SPARSE_TENSORS))
FIELDS: Mapping[Kind, str] = {  # in this order they tell the type of an attribute that states none
    Kind.FLOAT: "f", Kind.INT: "i", Kind.STRING: "s", Kind.TENSOR: "t", Kind.GRAPH: "g",
    Kind.SPARSE_TENSOR: "sparse_tensor", Kind.TYPE_PROTO: "tp",
    Kind.FLOATS: "floats", Kind.INTS: "ints", Kind.STRINGS: "strings", Kind.TENSORS: "tensors",
    Kind.GRAPHS: "graphs", Kind.SPARSE_TENSORS: "sparse_tensors", Kind.TYPE_PROTOS: "type_protos",
}  # fmt: skip
SINGULAR: Mapping[Kind, Kind] = {kind: Kind[kind.name[:-1]] for kind in Kind if kind.name.endswith("S")}


def entries(props: Mapping[str, str]) -> list[onnx.StringStringEntryProto]:
    """Return metadata as messages."""
    return [onnx.StringStringEntryProto(key=key, value=value) for key, value in props.items()]


def model_skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return everything at the level of the model itself."""
    proto = onnx.ModelProto(ir_version=model.ir_version, opset_import=_opsets(model.opset_imports))
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if (value := getattr(model, name)) is not None:
            setattr(proto, name, value)
    proto.metadata_props.extend(entries(model.metadata_props))
    proto.configuration.extend(serde.serialize_model_configuration(c) for c in model.device_configurations)
    return proto


def graph_skeleton(graph: ir.Graph) -> onnx.GraphProto:
    """Return the name, documentation and metadata of a graph."""
    return onnx.GraphProto(name=graph.name, doc_string=graph.doc_string, metadata_props=entries(graph.metadata_props))


def function_skeleton(function: ir.Function) -> onnx.FunctionProto:
    """Return a function without its nodes and the types of its values."""
    attributes = function.attributes.values()
    return onnx.FunctionProto(
        name=function.name,
        domain=function.domain,
        overload=function.overload or None,
        doc_string=function.doc_string,
        input=[value.name or "" for value in function.inputs],
        output=[value.name or "" for value in function.outputs],
        attribute=[a.name for a in attributes if a.value is None and not a.is_ref()],
        attribute_proto=[attribute_skeleton(a) for a in attributes if a.value is not None or a.is_ref()],
        opset_import=_opsets(function.opset_imports),
        metadata_props=entries(function.metadata_props),
    )


def value_skeleton(value: ir.Value) -> onnx.ValueInfoProto:
    """Return the name, type, shape, documentation and metadata of a value."""
    kind = None if value.type is None else _type(value)
    proto = onnx.ValueInfoProto(name=value.name, doc_string=value.doc_string, type=kind)
    if value.metadata_props:
        proto.metadata_props.extend(entries(value.metadata_props))
    return proto


def node_skeleton(node: ir.Node) -> onnx.NodeProto:
    """Return a node without the content of its graphs and lazy tensors."""
    proto = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain or None,
        overload=node.overload or None,
        name=node.name or None,
        doc_string=node.doc_string,
        input=["" if value is None else value.name or "" for value in node.inputs],
        output=[value.name or "" for value in node.outputs],
        attribute=[attribute_skeleton(attribute) for attribute in node.attributes.data.values()],
    )
    if node.metadata_props:
        proto.metadata_props.extend(entries(node.metadata_props))
    for configuration in node.device_configurations:
        proto.device_configurations.append(serde.serialize_node_device_configuration(configuration))
    return proto


def attribute_skeleton(attr: ir.Attr) -> onnx.AttributeProto:
    """Return an attribute; `Encoder` fills in graphs and lazy tensors."""
    kind, value, content = attr.type, attr.value, dict[str, Any]()
    if attr.is_ref():
        content["ref_attr_name"] = attr.ref_attr_name or ""
    elif value is not None and not omits_content(attr):
        encode = _ENCODERS.get(SINGULAR.get(kind, kind))
        if encode is not None:
            value = list(map(encode, value)) if kind in SINGULAR else encode(value)
        content[FIELDS[kind]] = value
    elif kind == Kind.TENSOR:
        content["t"] = onnx.TensorProto()
    kind_number = kind.value or None
    return onnx.AttributeProto(name=attr.name, doc_string=attr.doc_string, type=cast(Any, kind_number), **content)


def tensor_skeleton(tensor: ir.TensorProtocol, name: str | None) -> onnx.TensorProto:
    """Return a tensor as it was read, or everything except its data."""
    proto = onnx.TensorProto()
    origin: onnx.TensorProto | None = getattr(tensor, "skeleton", None)
    if origin is None:
        proto.data_type = tensor.dtype.value
        proto.dims.extend(tensor.shape.numpy())
    else:
        proto.CopyFrom(origin)
    if (name or "") != proto.name:
        proto.name = name or ""
    if (tensor.doc_string or "") != proto.doc_string:
        proto.doc_string = tensor.doc_string or ""
    if tensor.metadata_props != {entry.key: entry.value for entry in proto.metadata_props}:
        del proto.metadata_props[:]
        proto.metadata_props.extend(entries(tensor.metadata_props))
    return proto


def omits_content(attribute: ir.Attr) -> bool:
    """Return whether a skeleton omits the content of an attribute."""
    return attribute.type in WITH_CONTENT and not attribute.is_ref() and not isinstance(attribute.value, KEPT)


def clear_content(protos: Iterable[onnx.AttributeProto], attributes: Iterable[ir.Attr]) -> None:
    """Clear, in a copy of what was read, everything that a skeleton omits."""
    for proto, attribute in zip(protos, attributes, strict=False):
        if omits_content(attribute):
            for kind in WITH_CONTENT:
                proto.ClearField(cast(Any, FIELDS[kind]))
            if attribute.type == Kind.TENSOR:
                proto.t.SetInParent()


def _opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in imports.items()]


def _type(value: ir.TypeAndShape | ir.Value) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    if value.type is not None:
        serde.serialize_type_into(proto, value.type)
        if value.shape is not None:
            serde.serialize_shape_into(proto, value.shape)
    return proto


# of the content of attributes; numbers are written as they are
_ENCODERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.STRING: string_bytes,
    Kind.TENSOR: lambda tensor: tensor_skeleton(tensor, tensor.name),
    Kind.TYPE_PROTO: _type,
}


def kind_by_content(proto: onnx.AttributeProto) -> Kind:
    """Return the type of an attribute that does not state it."""
    present = {descriptor.name for descriptor, _ in proto.ListFields()}
    return next((kind for kind, field in FIELDS.items() if field in present), Kind.UNDEFINED)


StoreData = Callable[[ir.TensorProtocol, onnx.TensorProto], None]


def declared_by_default(value: ir.Value) -> bool:
    """Return whether saving writes a value_info for the value without a special reason."""
    if value.is_graph_output() or not value.name:
        return False
    if value.producer() is None:  # a TensorProto cannot hold the metadata of its value
        return value.is_initializer() and not value.is_graph_input() and bool(value.metadata_props)
    return bool(value.type is not None or value.shape is not None or value.metadata_props or value.doc_string)


class Encoder:
    """Creates messages with all their content."""

    def __init__(self, store: StoreData) -> None:
        self._store = store

    def model(self, model: ir.Model) -> onnx.ModelProto:
        """Return the whole model."""
        proto = unmodeled_fields.recall(model.graph, unmodeled_fields.MODEL, model_skeleton(model))
        self._graph(model.graph, proto.graph)
        for function in model.functions.values():
            self._function(function, proto.functions.add())
        for training in unmodeled_fields.meta(model.graph).get(unmodeled_fields.TRAINING, ()):
            self._training(training, proto.training_info.add())
        return proto

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.CopyFrom(unmodeled_fields.recall(graph, unmodeled_fields.GRAPH, graph_skeleton(graph)))
        proto.input.extend(_declaration(value, unmodeled_fields.INPUT) for value in graph.inputs)
        proto.output.extend(_declaration(value, unmodeled_fields.OUTPUT) for value in graph.outputs)
        for value in graph.initializers.values():
            if value.const_value is None:
                raise ModelError(f"initializer {value.name!r} has no data", hint="give it a const_value before saving")
            if isinstance(value.const_value, SparseTensor):
                self._sparse(value.const_value, proto.sparse_initializer.add(), value.name)
            else:
                self._tensor(value.const_value, proto.initializer.add(), value.name)
        for node in graph:
            self._node(node, proto.node.add())
        proto.value_info.extend(_value_infos(graph))
        meta = unmodeled_fields.meta(graph)
        quants: list[onnx.TensorAnnotation] = []
        for value in dict.fromkeys(defined(graph)):
            if unmodeled_fields.QUANT in value.meta:
                names = entries(unmodeled_fields.meta(value)[unmodeled_fields.QUANT] or {})
                quants.append(onnx.TensorAnnotation(tensor_name=value.name, quant_parameter_tensor_names=names))
        quants += map(onnx.TensorAnnotation.FromString, meta.get(unmodeled_fields.LOOSE_QUANT, ()))
        proto.quantization_annotation.extend(
            unmodeled_fields.in_order(quants, "tensor_name", meta.get(unmodeled_fields.QUANT_ORDER))
        )

    def _function(self, function: ir.Function, proto: onnx.FunctionProto) -> None:
        graph = function.graph
        proto.CopyFrom(unmodeled_fields.recall(graph, unmodeled_fields.FUNCTION, function_skeleton(function)))
        for attribute in proto.attribute_proto:
            self._fill(attribute, function.attributes[attribute.name])
        for node in function:
            self._node(node, proto.node.add())
        proto.value_info.extend(_value_infos(graph, in_function=True))

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.CopyFrom(unmodeled_fields.recall(node, unmodeled_fields.NODE, node_skeleton(node)))
        for attribute, attr in zip(proto.attribute, node.attributes.data.values(), strict=True):
            self._fill(attribute, attr)

    def _fill(self, proto: onnx.AttributeProto, attr: ir.Attr) -> None:
        """Add what the skeleton of an attribute omits."""
        if not omits_content(attr):
            return
        message, item = getattr(proto, FIELDS[attr.type]), SINGULAR.get(attr.type, attr.type)
        for value in attr.value if attr.type in SINGULAR else (attr.value,):
            target = message.add() if attr.type in SINGULAR else message
            if item == Kind.GRAPH:
                self._graph(value, target)
            else:
                (self._tensor if item == Kind.TENSOR else self._sparse)(value, target, value.name)

    def _tensor(self, tensor: ir.TensorProtocol, proto: onnx.TensorProto, name: str | None) -> None:
        proto.CopyFrom(tensor_skeleton(tensor, name))
        if isinstance(tensor, ir.StringTensor):
            if not isinstance(tensor, KEPT):
                proto.string_data.extend(tensor.string_data())
        elif not isinstance(tensor, ProtoTensor) or proto.HasField("raw_data"):
            self._store(tensor, proto)

    def _sparse(self, sparse: SparseTensor, proto: onnx.SparseTensorProto, name: str | None) -> None:
        self._tensor(sparse.values, proto.values, name)
        self._tensor(sparse.indices, proto.indices, sparse.indices.name)
        proto.dims.extend(sparse.shape.numpy())

    def _training(self, training: unmodeled_fields.TrainingInfo, proto: onnx.TrainingInfoProto) -> None:
        proto.CopyFrom(training.proto)
        tensors = iter(training.tensors)
        for graph in (proto.initialization, proto.algorithm):
            for message in unmodeled_fields.tensors_in(graph):
                if (tensor := next(tensors)) is not None:
                    self._tensor(tensor, message, tensor.name)


def _value_infos(graph: ir.Graph, *, in_function: bool = False) -> list[onnx.ValueInfoProto]:
    """Return the value_info of a graph or function, in the order in which it was read."""
    infos: list[onnx.ValueInfoProto] = []
    for value in dict.fromkeys(defined(graph)):
        has_type = bool(value.name) and (value.type is not None or value.shape is not None)
        is_listed = unmodeled_fields.LISTED in value.meta
        if is_listed or declared_by_default(value) or (in_function and has_type):
            infos.append(_declaration(value, unmodeled_fields.VALUE_INFO))
    meta = unmodeled_fields.meta(graph)
    infos += map(onnx.ValueInfoProto.FromString, meta.get(unmodeled_fields.LOOSE_INFO, ()))
    return unmodeled_fields.in_order(infos, "name", meta.get(unmodeled_fields.INFO_ORDER))


def _declaration(value: ir.Value, role: str) -> onnx.ValueInfoProto:
    proto = value_skeleton(value)
    if role in value.meta:  # without its name, so that a renamed value keeps the rest
        proto = unmodeled_fields.recall(value, role, without(proto, "name"))
        proto.name = value.name or ""
    return proto
