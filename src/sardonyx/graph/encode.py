"""From the graph in memory to ModelProto messages.

A shell is the message of one object without the bodies and tensors inside it; shells are what loading compares with
the file (see carry). The encoder fills shells with their content and asks its caller where tensor data should go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ModelError
from sardonyx.graph import carry
from sardonyx.graph.tensors import FileTensor, HeldStrings, HeldTensor, SparseTensor

Place = Callable[[ir.TensorProtocol, onnx.TensorProto], None]
Kind = ir.AttributeType

# attributes with something inside that a shell leaves out
HOLLOW = frozenset((Kind.GRAPH, Kind.GRAPHS, Kind.TENSOR, Kind.TENSORS, Kind.SPARSE_TENSOR, Kind.SPARSE_TENSORS))
_SCALARS = {Kind.INT: "i", Kind.FLOAT: "f"}
_LISTS = {Kind.INTS: "ints", Kind.FLOATS: "floats"}


def _entries(props: Mapping[str, str]) -> list[onnx.StringStringEntryProto]:
    return [onnx.StringStringEntryProto(key=key, value=value) for key, value in props.items()]


def model_shell(model: ir.Model) -> onnx.ModelProto:
    """Everything at the model's own level."""
    proto = onnx.ModelProto(ir_version=model.ir_version, opset_import=_opsets(model.opset_imports))
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if (value := getattr(model, name)) is not None:
            setattr(proto, name, value)
    proto.metadata_props.extend(_entries(model.metadata_props))
    proto.configuration.extend(serde.serialize_model_configuration(c) for c in model.device_configurations)
    return proto


def graph_shell(graph: ir.Graph) -> onnx.GraphProto:
    """A graph's name, documentation and metadata."""
    return onnx.GraphProto(name=graph.name, doc_string=graph.doc_string, metadata_props=_entries(graph.metadata_props))


def function_shell(function: ir.Function) -> onnx.FunctionProto:
    """A function without its nodes and the types of its values."""
    attributes = function.attributes.values()
    return onnx.FunctionProto(
        name=function.name,
        domain=function.domain,
        overload=function.overload or None,
        doc_string=function.doc_string,
        input=[value.name or "" for value in function.inputs],
        output=[value.name or "" for value in function.outputs],
        attribute=[a.name for a in attributes if a.value is None and not a.is_ref()],
        attribute_proto=[attribute_shell(a) for a in attributes if a.value is not None or a.is_ref()],
        opset_import=_opsets(function.opset_imports),
        metadata_props=_entries(function.metadata_props),
    )


def value_shell(value: ir.Value) -> onnx.ValueInfoProto:
    """A value's name, type, shape, documentation and metadata."""
    proto = onnx.ValueInfoProto(name=value.name, doc_string=value.doc_string)
    if value.type is not None:
        serde.serialize_type_into(proto.type, value.type)
        if value.shape is not None:
            serde.serialize_shape_into(proto.type, value.shape)
    if value.metadata_props:
        proto.metadata_props.extend(_entries(value.metadata_props))
    return proto


def node_shell(node: ir.Node) -> onnx.NodeProto:
    """A node whose bodies and unread tensors are still empty."""
    proto = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain or None,
        overload=node.overload or None,
        name=node.name or None,
        doc_string=node.doc_string,
        input=["" if value is None else value.name or "" for value in node.inputs],
        output=[value.name or "" for value in node.outputs],
        attribute=[attribute_shell(attribute) for attribute in node.attributes.values()],
    )
    if node.metadata_props:
        proto.metadata_props.extend(_entries(node.metadata_props))
    for configuration in node.device_configurations:
        proto.device_configurations.append(serde.serialize_node_device_configuration(configuration))
    return proto


def attribute_shell(attr: ir.Attr) -> onnx.AttributeProto:
    """An attribute; bodies and unread tensors are left for `Encoder` to fill in."""
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
        proto.s = as_bytes(attr.value)
    elif kind == Kind.STRINGS:
        proto.strings.extend(as_bytes(text) for text in attr.value)
    elif kind == Kind.TENSOR:
        proto.t.SetInParent()
        if isinstance(attr.value, (HeldTensor, HeldStrings)):
            proto.t.CopyFrom(tensor_shell(attr.value, attr.value.name))
    elif kind == Kind.TYPE_PROTO:
        _type_into(proto.tp, attr.value)
    elif kind == Kind.TYPE_PROTOS:
        for each in attr.value:
            _type_into(proto.type_protos.add(), each)
    return proto


def tensor_shell(tensor: ir.TensorProtocol, name: str | None) -> onnx.TensorProto:
    """A tensor as it was read, or with all but its data."""
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
        proto.metadata_props.extend(_entries(tensor.metadata_props))
    return proto


def as_bytes(text: str | bytes) -> bytes:
    """String attributes are bytes in ONNX, and now and then not UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def declared_by_default(value: ir.Value) -> bool:
    """Whether saving writes a value_info for the value of its own accord."""
    if value.producer() is None or value.is_graph_output() or not value.name:
        return False
    return bool(value.type is not None or value.shape is not None or value.metadata_props or value.doc_string)


class Encoder:
    """Writes messages with everything in them."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def model(self, model: ir.Model) -> onnx.ModelProto:
        """The whole model."""
        proto = carry.recall(model.graph.meta, carry.MODEL, model_shell(model))
        self._graph(model.graph, proto.graph)
        for function in model.functions.values():
            self._function(function, proto.functions.add())
        for training in cast(tuple[carry.TrainingInfo, ...], model.graph.meta.get(carry.TRAINING, ())):
            self._training(training, proto.training_info.add())
        return proto

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.CopyFrom(carry.recall(graph.meta, carry.GRAPH, graph_shell(graph)))
        proto.input.extend(_declaration(value, carry.INPUT) for value in graph.inputs)
        proto.output.extend(_declaration(value, carry.OUTPUT) for value in graph.outputs)
        for value in graph.initializers.values():
            if value.const_value is None:
                raise ModelError(f"initializer {value.name!r} has no data", hint="give it a const_value before saving")
            if isinstance(value.const_value, SparseTensor):
                self._sparse(value.const_value, proto.sparse_initializer.add(), value.name)
            else:
                self._tensor(value.const_value, proto.initializer.add(), value.name)
        for node in graph:
            self._node(node, proto.node.add())
        known = _values(graph)
        infos = [_declaration(value, carry.VALUE_INFO) for value in known if _is_declared(value)]
        infos += _parsed(onnx.ValueInfoProto, graph.meta.get(carry.LOOSE_INFO, ()))
        order = carry.in_order((info.name for info in infos), graph.meta.get(carry.INFO_ORDER))
        proto.value_info.extend(infos[place] for place in order)
        quants = [_annotation(value) for value in known if carry.QUANT in value.meta]
        quants += _parsed(onnx.TensorAnnotation, graph.meta.get(carry.LOOSE_QUANT, ()))
        order = carry.in_order((quant.tensor_name for quant in quants), graph.meta.get(carry.QUANT_ORDER))
        proto.quantization_annotation.extend(quants[place] for place in order)

    def _function(self, function: ir.Function, proto: onnx.FunctionProto) -> None:
        graph = function.graph
        proto.CopyFrom(carry.recall(graph.meta, carry.FUNCTION, function_shell(function)))
        for attribute in proto.attribute_proto:
            self._fill(attribute, function.attributes.get(attribute.name))
        for node in function:
            self._node(node, proto.node.add())
        infos = [_declaration(value, carry.VALUE_INFO) for value in _values(graph) if _is_declared(value, inside=True)]
        infos += _parsed(onnx.ValueInfoProto, graph.meta.get(carry.LOOSE_INFO, ()))
        order = carry.in_order((info.name for info in infos), graph.meta.get(carry.INFO_ORDER))
        proto.value_info.extend(infos[place] for place in order)

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.CopyFrom(carry.recall(node.meta, carry.NODE, node_shell(node)) if node.meta else node_shell(node))
        for attribute in proto.attribute:
            self._fill(attribute, node.attributes.get(attribute.name))

    def _fill(self, proto: onnx.AttributeProto, attr: ir.Attr | None) -> None:
        if attr is None or attr.type not in HOLLOW or attr.is_ref():
            return
        if attr.type == Kind.GRAPH:
            self._graph(attr.as_graph(), proto.g)
        elif attr.type == Kind.GRAPHS:
            for graph in attr.as_graphs():
                self._graph(graph, proto.graphs.add())
        elif attr.type == Kind.TENSOR:
            if not isinstance(attr.value, (HeldTensor, HeldStrings)):
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
        proto.CopyFrom(tensor_shell(tensor, name))
        if isinstance(tensor, SparseTensor):
            raise ModelError(f"sparse tensor {name!r} stands where only a dense one can", hint="this is a bug: report it")
        if isinstance(tensor, ir.StringTensor):
            if not isinstance(tensor, HeldStrings):
                proto.string_data.extend(tensor.string_data())
        elif not isinstance(tensor, HeldTensor) or proto.HasField("raw_data"):
            self._place(tensor, proto)

    def _sparse(self, sparse: SparseTensor, proto: onnx.SparseTensorProto, name: str | None) -> None:
        self._tensor(sparse.values, proto.values, name)
        self._tensor(sparse.indices, proto.indices, sparse.indices.name)
        proto.dims.extend(sparse.shape.numpy())

    def _training(self, training: carry.TrainingInfo, proto: onnx.TrainingInfoProto) -> None:
        proto.CopyFrom(training.proto)
        tensors = iter(training.tensors)
        for graph in (proto.initialization, proto.algorithm):
            for place in carry.tensors_in(graph):
                if (tensor := next(tensors)) is not None:
                    self._tensor(tensor, place, tensor.name)


def _origin(tensor: ir.TensorProtocol) -> onnx.TensorProto | None:
    if isinstance(tensor, HeldTensor):
        return tensor.raw
    if isinstance(tensor, HeldStrings):
        return tensor.proto
    return tensor.shell if isinstance(tensor, FileTensor) else None


def _opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in imports.items()]


def _type_into(proto: onnx.TypeProto, value: ir.TypeAndShape) -> None:
    if value.type is not None:
        serde.serialize_type_into(proto, value.type)
        if value.shape is not None:
            serde.serialize_shape_into(proto, value.shape)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    """Every value that belongs to the graph itself, in the order in which value_info usually lists them."""
    seen = {id(value) for value in graph.inputs}
    values = list(graph.inputs)
    values += [value for value in graph.initializers.values() if id(value) not in seen]
    values += [value for node in graph for value in node.outputs]
    return values


def _is_declared(value: ir.Value, *, inside: bool = False) -> bool:
    if declared_by_default(value) or value.meta.get(carry.LISTED, False):
        return True
    return inside and bool(value.name) and (value.type is not None or value.shape is not None)


def _declaration(value: ir.Value, role: str) -> onnx.ValueInfoProto:
    proto = value_shell(value)
    kept: carry.Verbatim | None = value.meta.get(role) if value.meta else None
    if kept is not None and kept.encoded == carry.nameless(proto):
        name = proto.name
        proto = onnx.ValueInfoProto.FromString(kept.read)
        proto.name = name
    return proto


def _annotation(value: ir.Value) -> onnx.TensorAnnotation:
    names = cast(Mapping[str, str] | None, value.meta[carry.QUANT])
    return onnx.TensorAnnotation(tensor_name=value.name, quant_parameter_tensor_names=_entries(names or {}))


def _parsed(kind: Any, messages: Iterable[bytes]) -> list[Any]:
    return [kind.FromString(message) for message in messages]
