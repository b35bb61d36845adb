"""Encode the graph in memory as ModelProto messages: skeletons that are filled with their content.

The caller decides where tensor data goes: into the message, or somewhere the message refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.errors import ModelError
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.io.skeletons import (
    WITH_CONTENT,
    Kind,
    entries,
    function_skeleton,
    graph_skeleton,
    model_skeleton,
    node_skeleton,
    tensor_skeleton,
    value_skeleton,
)
from sardonyx.ir.tensors import ProtoStrings, ProtoTensor, SparseTensor

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
