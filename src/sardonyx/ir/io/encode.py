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
from sardonyx.ir.tensors import FileTensor, ProtoStrings, ProtoTensor, SparseTensor, string_bytes

Kind = ir.AttributeType

# attributes with content that a skeleton omits
WITH_CONTENT = frozenset((Kind.GRAPH, Kind.GRAPHS, Kind.TENSOR, Kind.TENSORS, Kind.SPARSE_TENSOR, Kind.SPARSE_TENSORS))
_SCALARS = {Kind.INT: "i", Kind.FLOAT: "f"}
_LISTS = {Kind.INTS: "ints", Kind.FLOATS: "floats"}

VALUE_FIELDS: tuple[tuple[str, Kind], ...] = (  # tell the type of an attribute that states none
    ("f", Kind.FLOAT), ("i", Kind.INT), ("s", Kind.STRING), ("t", Kind.TENSOR), ("g", Kind.GRAPH),
    ("sparse_tensor", Kind.SPARSE_TENSOR), ("tp", Kind.TYPE_PROTO),
    ("floats", Kind.FLOATS), ("ints", Kind.INTS), ("strings", Kind.STRINGS), ("tensors", Kind.TENSORS),
    ("graphs", Kind.GRAPHS), ("sparse_tensors", Kind.SPARSE_TENSORS), ("type_protos", Kind.TYPE_PROTOS),
)  # fmt: skip


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
    proto = onnx.ValueInfoProto(name=value.name, doc_string=value.doc_string)
    if value.type is not None:
        serde.serialize_type_into(proto.type, value.type)
        if value.shape is not None:
            serde.serialize_shape_into(proto.type, value.shape)
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
    kind = attr.type
    proto = onnx.AttributeProto(name=attr.name, doc_string=attr.doc_string)
    if kind != Kind.UNDEFINED:
        proto.type = cast(Any, kind.value)
    if attr.is_ref():
        proto.ref_attr_name = attr.ref_attr_name or ""
    elif attr.value is None:
        pass
    elif kind in _SCALARS:
        setattr(proto, _SCALARS[kind], attr.value)
    elif kind in _LISTS:
        getattr(proto, _LISTS[kind]).extend(attr.value)
    elif kind == Kind.STRING:
        proto.s = string_bytes(attr.value)
    elif kind == Kind.STRINGS:
        proto.strings.extend(string_bytes(text) for text in attr.value)
    elif kind == Kind.TENSOR:
        proto.t.SetInParent()
        if isinstance(attr.value, (ProtoTensor, ProtoStrings)):
            proto.t.CopyFrom(tensor_skeleton(attr.value, attr.value.name))
    elif kind == Kind.TYPE_PROTO:
        _type_into(proto.tp, attr.value)
    elif kind == Kind.TYPE_PROTOS:
        for item in attr.value:
            _type_into(proto.type_protos.add(), item)
    return proto


def tensor_skeleton(tensor: ir.TensorProtocol, name: str | None) -> onnx.TensorProto:
    """Return a tensor as it was read, or everything except its data."""
    proto = onnx.TensorProto()
    origin = _origin(tensor)
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


def without(proto: Any, fields: tuple[str, ...], *, unknown_fields: bool) -> Any:
    """Return a copy without some fields, which are not copied first unless there are unknown fields."""
    copy = type(proto)()
    if unknown_fields:
        copy.CopyFrom(proto)
        for field in fields:
            copy.ClearField(field)
        return copy
    for descriptor, value in proto.ListFields():
        if descriptor.name in fields:
            continue
        if descriptor.is_repeated:
            getattr(copy, descriptor.name).extend(value)
        elif descriptor.message_type is not None:
            getattr(copy, descriptor.name).CopyFrom(value)
        else:
            setattr(copy, descriptor.name, value)
    return copy


def _omits_content(attribute: ir.Attr) -> bool:
    if attribute.type not in WITH_CONTENT or attribute.is_ref():
        return False
    return not isinstance(attribute.value, (ProtoTensor, ProtoStrings))


def clear_content(protos: Iterable[onnx.AttributeProto], attributes: Iterable[ir.Attr]) -> None:
    """Clear, in a copy of what was read, everything that a skeleton omits."""
    for proto, attribute in zip(protos, attributes, strict=False):
        if not _omits_content(attribute):
            continue
        for field in ("g", "graphs", "tensors", "sparse_tensor", "sparse_tensors", "t"):
            proto.ClearField(field)  # pyright: ignore[reportArgumentType] (the stubs want a literal)
        if attribute.type == Kind.TENSOR:
            proto.t.SetInParent()


def _origin(tensor: ir.TensorProtocol) -> onnx.TensorProto | None:
    if isinstance(tensor, ProtoTensor):
        return tensor.raw
    if isinstance(tensor, ProtoStrings):
        return tensor.proto
    return tensor.skeleton if isinstance(tensor, FileTensor) else None


def _opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in imports.items()]


def _type_into(proto: onnx.TypeProto, value: ir.TypeAndShape) -> None:
    if value.type is not None:
        serde.serialize_type_into(proto, value.type)
        if value.shape is not None:
            serde.serialize_shape_into(proto, value.shape)


def kind_by_content(proto: onnx.AttributeProto) -> Kind:
    """Return the type of an attribute that does not state it."""
    present = {descriptor.name for descriptor, _ in proto.ListFields()}
    return next((kind for field, kind in VALUE_FIELDS if field in present), Kind.UNDEFINED)


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
        quants = [_annotation(value) for value in _values(graph) if unmodeled_fields.QUANT in value.meta]
        quants += _parsed(onnx.TensorAnnotation, meta.get(unmodeled_fields.LOOSE_QUANT, ()))
        names = (quant.tensor_name for quant in quants)
        order = unmodeled_fields.in_order(names, meta.get(unmodeled_fields.QUANT_ORDER))
        proto.quantization_annotation.extend(quants[position] for position in order)

    def _function(self, function: ir.Function, proto: onnx.FunctionProto) -> None:
        graph = function.graph
        proto.CopyFrom(unmodeled_fields.recall(graph, unmodeled_fields.FUNCTION, function_skeleton(function)))
        for attribute in proto.attribute_proto:
            self._fill(attribute, function.attributes.get(attribute.name))
        for node in function:
            self._node(node, proto.node.add())
        proto.value_info.extend(_value_infos(graph, in_function=True))

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        skeleton = node_skeleton(node)
        if unmodeled_fields.NODE in node.meta:
            skeleton = unmodeled_fields.recall(node, unmodeled_fields.NODE, skeleton)
        proto.CopyFrom(skeleton)
        for attribute in proto.attribute:
            self._fill(attribute, node.attributes.get(attribute.name))

    def _fill(self, proto: onnx.AttributeProto, attr: ir.Attr | None) -> None:
        if attr is None or attr.type not in WITH_CONTENT or attr.is_ref():
            return
        if attr.type == Kind.GRAPH:
            self._graph(attr.as_graph(), proto.g)
        elif attr.type == Kind.GRAPHS:
            for graph in attr.as_graphs():
                self._graph(graph, proto.graphs.add())
        elif attr.type == Kind.TENSOR:
            if not isinstance(attr.value, (ProtoTensor, ProtoStrings)):
                self._tensor(attr.value, proto.t, attr.value.name)
        elif attr.type == Kind.TENSORS:
            for tensor in attr.as_tensors():
                self._tensor(tensor, proto.tensors.add(), tensor.name)
        elif attr.type == Kind.SPARSE_TENSOR:
            self._sparse(attr.value, proto.sparse_tensor, attr.value.name)
        elif attr.type == Kind.SPARSE_TENSORS:
            for sparse in attr.value:
                self._sparse(sparse, proto.sparse_tensors.add(), sparse.name)

    def _tensor(self, tensor: ir.TensorProtocol, proto: onnx.TensorProto, name: str | None) -> None:
        proto.CopyFrom(tensor_skeleton(tensor, name))
        if isinstance(tensor, SparseTensor):
            raise ModelError(
                f"sparse tensor {name!r} is used where only a dense one is allowed", hint="this is a bug: report it"
            )
        if isinstance(tensor, ir.StringTensor):
            if not isinstance(tensor, ProtoStrings):
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


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    """Return every value that belongs to the graph itself, in the order in which value_info usually lists them."""
    seen = {id(value) for value in graph.inputs}
    values = list(graph.inputs)
    values += [value for value in graph.initializers.values() if id(value) not in seen]
    values += [value for node in graph for value in node.outputs]
    return values


def _value_infos(graph: ir.Graph, *, in_function: bool = False) -> list[onnx.ValueInfoProto]:
    """Return the value_info of a graph or function, in the order in which it was read."""
    declared = [value for value in _values(graph) if _is_declared(value, in_function=in_function)]
    infos = [_declaration(value, unmodeled_fields.VALUE_INFO) for value in declared]
    meta = unmodeled_fields.meta(graph)
    infos += _parsed(onnx.ValueInfoProto, meta.get(unmodeled_fields.LOOSE_INFO, ()))
    order = unmodeled_fields.in_order((info.name for info in infos), meta.get(unmodeled_fields.INFO_ORDER))
    return [infos[position] for position in order]


def _is_declared(value: ir.Value, *, in_function: bool) -> bool:
    if declared_by_default(value) or unmodeled_fields.meta(value).get(unmodeled_fields.LISTED, False):
        return True
    return in_function and bool(value.name) and (value.type is not None or value.shape is not None)


def _declaration(value: ir.Value, role: str) -> onnx.ValueInfoProto:
    proto = value_skeleton(value)
    stored: unmodeled_fields.Verbatim | None = unmodeled_fields.meta(value).get(role)
    if stored is not None and stored.encoded == unmodeled_fields.nameless(proto):
        name = proto.name
        proto = onnx.ValueInfoProto.FromString(stored.read)
        proto.name = name
    return proto


def _annotation(value: ir.Value) -> onnx.TensorAnnotation:
    names: Mapping[str, str] | None = unmodeled_fields.meta(value)[unmodeled_fields.QUANT]
    return onnx.TensorAnnotation(tensor_name=value.name, quant_parameter_tensor_names=entries(names or {}))


def _parsed(kind: Any, messages: Iterable[bytes]) -> list[Any]:
    return [kind.FromString(message) for message in messages]
