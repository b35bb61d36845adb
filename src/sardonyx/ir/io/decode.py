"""Decode ModelProto messages to the graph in memory; `unmodeled_fields` keeps what onnx-ir cannot represent.

Loading notices everything that saving would write differently: it encodes each object again and compares the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ModelError
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.io.encode import (
    FIELDS,
    SINGULAR,
    Kind,
    clear_content,
    declared_by_default,
    entries,
    function_skeleton,
    graph_skeleton,
    kind_by_content,
    model_skeleton,
    node_skeleton,
    omits_content,
    value_skeleton,
)
from sardonyx.ir.io.tensor_data import Reader
from sardonyx.ir.io.unmodeled_fields import without
from sardonyx.ir.scopes import Parameter
from sardonyx.ir.storage import DTYPES
from sardonyx.ir.tensors import KEPT, SparseTensor

Scope = dict[str, ir.Value]

_KINDS = {kind.value: kind for kind in Kind}  # calling the enum is slow
_READ_AS_IS = frozenset((Kind.UNDEFINED, Kind.INT, Kind.FLOAT, Kind.INTS, Kind.FLOATS))
_GRAPH_CONTENT = (
    "node", "initializer", "sparse_initializer", "input", "output", "value_info", "quantization_annotation"
)  # fmt: skip


def decode(proto: onnx.ModelProto, read_tensor: Reader) -> ir.Model:
    """Return the model in memory.

    Args:
        proto: The model; it is not changed, and small tensors keep references into it.
        read_tensor: Creates tensors from TensorProtos.
    """
    try:
        return _Decoder(read_tensor).model(proto)
    except UnicodeDecodeError as error:
        raise _not_utf8(error.object) from error


def _not_utf8(text: bytes) -> ModelError:
    return ModelError(f"a name in the model is not UTF-8: {text[:60]!r}", hint="export the model again")


def _check_text(*texts: str | bytes) -> None:
    """Refuse text that is not UTF-8, which protobuf returns as bytes."""
    if bytes in map(type, texts):
        raise _not_utf8(next(text for text in texts if isinstance(text, bytes)))


def _invalid(message: str) -> ModelError:
    return ModelError(message, hint="the model is not valid ONNX; onnx.checker.check_model may report details")


class _Decoder:
    def __init__(self, read_tensor: Reader) -> None:
        self._read_tensor = read_tensor
        self._readers: Mapping[Kind, Callable[[Any], Any]] = {  # of the content of attributes
            Kind.STRING: _text,
            Kind.TENSOR: read_tensor,
            Kind.SPARSE_TENSOR: self._sparse,
            Kind.TYPE_PROTO: lambda proto: ir.TypeAndShape(*_type_and_shape(proto)),
        }

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        training = tuple(self._training(info) for info in proto.training_info)
        graph = self._graph(proto.graph, [])
        graph.opset_imports.update(_opsets(proto.opset_import))
        functions = [self._function(function) for function in proto.functions]
        if repeated := _repeated(function.identifier() for function in functions):
            raise _invalid(f"function {'::'.join(part for part in repeated if part)} is defined twice")
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=_field(proto, "producer_name"),
            producer_version=_field(proto, "producer_version"),
            domain=_field(proto, "domain"),
            model_version=_field(proto, "model_version"),
            doc_string=_field(proto, "doc_string"),
            functions=functions,
            metadata_props=_props(proto.metadata_props),
            device_configurations=tuple(serde.deserialize_model_configuration(c) for c in proto.configuration),
        )
        read = without(proto, "graph", "functions", "training_info")
        unmodeled_fields.remember(graph, unmodeled_fields.MODEL, model_skeleton(model), read)
        if training:
            unmodeled_fields.meta(graph)[unmodeled_fields.TRAINING] = training
        if self._read_tensor.used_external:
            unmodeled_fields.meta(graph)[unmodeled_fields.EXTERNAL] = True
        return model

    def _graph(self, proto: onnx.GraphProto, scopes: list[Scope]) -> ir.Graph:
        inputs = [_declare(ir.Value(name=info.name), info) for info in proto.input]
        values = _defined(inputs)
        initializers = self._initializers(proto, values)
        _define_outputs(values, proto.node)
        input_names = {info.name for info in proto.input}
        for info in proto.value_info:
            if info.name in values and info.name not in input_names:
                _declare(values[info.name], info)
        nodes = [self._node(node, [*scopes, values]) for node in proto.node]
        outputs: list[ir.Value] = []
        for info in proto.output:
            if info.name not in values:
                raise _invalid(f"nothing produces the graph output {info.name!r}")
            outputs.append(_declare(values[info.name], info))
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=_field(proto, "doc_string"),
            name=_field(proto, "name"),
            metadata_props=_props(proto.metadata_props),
        )
        unmodeled_fields.remember(graph, unmodeled_fields.GRAPH, graph_skeleton(graph), without(proto, *_GRAPH_CONTENT))
        for role, declarations in ((unmodeled_fields.INPUT, proto.input), (unmodeled_fields.OUTPUT, proto.output)):
            for info in declarations:
                _remember_declaration(values[info.name], role, info)
        _remember_value_info(graph, values, proto.value_info)
        _remember_annotations(graph, values, proto.quantization_annotation)
        return graph

    def _initializers(self, proto: onnx.GraphProto, values: Scope) -> list[ir.Value]:
        tensors = [self._read_tensor(tensor) for tensor in proto.initializer]
        tensors += [self._sparse(sparse) for sparse in proto.sparse_initializer]
        if repeated := _repeated(tensor.name for tensor in tensors):
            raise _invalid(f"initializer {repeated!r} is defined twice")
        initializers: list[ir.Value] = []
        for tensor in tensors:
            if not tensor.name:
                raise _invalid("an initializer has no name")
            if tensor.dtype == ir.DataType.UNDEFINED:
                raise _invalid(f"initializer {tensor.name!r} has no element type")
            value = values.get(tensor.name)
            if value is None:
                value = ir.Value(
                    name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
                )
                values[tensor.name] = value
            value.const_value = tensor
            initializers.append(value)
        return initializers

    def _function(self, proto: onnx.FunctionProto) -> ir.Function:
        _check_text(proto.domain, proto.name, proto.overload, *proto.output, *proto.attribute)
        inputs = [ir.Value(name=name) for name in proto.input]
        values = _defined(inputs)
        _define_outputs(values, proto.node)
        for info in proto.value_info:
            if info.name in values:
                _declare(values[info.name], info)
        nodes = [self._node(node, [values]) for node in proto.node]
        if missing := [name for name in proto.output if name not in values]:
            raise _invalid(f"nothing produces the output {missing[0]!r} of function {proto.name!r}")
        graph = ir.Graph(
            inputs,
            [values[name] for name in proto.output],
            nodes=nodes,
            doc_string=_field(proto, "doc_string"),
            opset_imports=_opsets(proto.opset_import),
            metadata_props=_props(proto.metadata_props),
        )
        attributes = [self._attribute(attribute, []) for attribute in proto.attribute_proto]
        attributes += [ir.Attr(name, Kind.UNDEFINED, None) for name in proto.attribute]
        if repeated := _repeated(attribute.name for attribute in attributes):
            raise _invalid(f"function {proto.name!r} declares attribute {repeated!r} twice")
        function = ir.Function(proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes)
        read = without(proto, "node", "value_info")
        clear_content(read.attribute_proto, attributes)
        unmodeled_fields.remember(graph, unmodeled_fields.FUNCTION, function_skeleton(function), read)
        _remember_value_info(graph, values, proto.value_info)
        return function

    def _node(self, proto: onnx.NodeProto, scopes: list[Scope]) -> ir.Node:
        op_type, domain, overload, name, inputs = (
            proto.op_type,
            proto.domain,
            proto.overload,
            proto.name,
            [*proto.input],
        )
        _check_text(op_type, domain, overload, name, *inputs)
        attributes = [self._attribute(attribute, scopes) for attribute in proto.attribute]
        if len(attributes) > 1 and (repeated := _repeated(attribute.name for attribute in attributes)):
            raise _invalid(f"node {name!r} ({op_type}) has attribute {repeated!r} twice")
        node = ir.Node(
            domain,
            op_type,
            [_look_up(each, scopes, proto) if each else None for each in inputs],
            attributes,
            overload=overload,
            outputs=[scopes[-1][each] if each else ir.Value(name="") for each in proto.output],
            name=name,
            doc_string=_field(proto, "doc_string"),
            metadata_props=_props(proto.metadata_props),
        )
        if proto.device_configurations:
            if not all(item.configuration_id for item in proto.device_configurations):
                raise _invalid(f"node {proto.name!r} ({proto.op_type}) has a device configuration without a name")
            values = {name: value for scope in scopes for name, value in scope.items()}
            node.device_configurations = tuple(
                serde.deserialize_node_device_configuration(item, values) for item in proto.device_configurations
            )
        read = proto
        if any(map(omits_content, attributes)):
            read = without(proto)
            clear_content(read.attribute, attributes)
        unmodeled_fields.remember(node, unmodeled_fields.NODE, node_skeleton(node), read)
        return node

    def _attribute(self, proto: onnx.AttributeProto, scopes: list[Scope]) -> ir.Attr:
        name, reference = proto.name, proto.ref_attr_name
        _check_text(name, reference)
        kind = _KINDS[proto.type] or kind_by_content(proto)
        doc_string = _field(proto, "doc_string")
        if reference:
            return Parameter(name, reference, kind, doc_string=doc_string)
        if kind in (Kind.GRAPH, Kind.SPARSE_TENSOR) and not proto.HasField(FIELDS[kind]):
            raise _invalid(f"attribute {name!r} has type {kind.name} but no value")
        value: Any = getattr(proto, FIELDS[kind]) if kind else None
        if kind not in _READ_AS_IS:
            item = SINGULAR.get(kind, kind)
            read = partial(self._graph, scopes=scopes) if item is Kind.GRAPH else self._readers[item]
            value = read(value) if item is kind else list(map(read, value))
        return ir.Attr(name, kind, value, doc_string=doc_string)

    def _sparse(self, proto: onnx.SparseTensorProto) -> SparseTensor:
        return SparseTensor(self._read_tensor(proto.values), self._read_tensor(proto.indices), proto.dims)

    def _training(self, proto: onnx.TrainingInfoProto) -> unmodeled_fields.TrainingInfo:
        copy = without(proto)
        tensors: list[ir.TensorProtocol | None] = []
        for graph in (copy.initialization, copy.algorithm):
            for message in unmodeled_fields.tensors_in(graph):
                tensor = self._read_tensor(message)
                tensors.append(None if isinstance(tensor, KEPT) else tensor)
        return unmodeled_fields.TrainingInfo(copy, tuple(tensors))


def _field(proto: Any, field: str) -> Any:
    """Return the value of a field, or None if it is not set."""
    if not proto.HasField(field):
        return None
    value = getattr(proto, field)
    _check_text(value)
    return value


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in imports:
        _check_text(entry.domain)
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if abs(entry.version) >= 1 << 31:  # the schemas of onnx are numbered in 32 bits
            raise _invalid(f"version {entry.version} of opset {entry.domain or 'ai.onnx'!r} does not exist")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise _invalid(f"two versions of opset {entry.domain or 'ai.onnx'!r} are imported")
    return opsets


def _repeated(names: Iterable[Any]) -> Any:
    """Return the first name that occurs twice, or None."""
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _defined(inputs: Iterable[ir.Value]) -> Scope:
    values: Scope = {}
    for value in inputs:
        _define(values, value, "an input")
    return values


def _define(values: Scope, value: ir.Value, what: str) -> None:
    if not value.name:
        raise _invalid(f"{what} has no name")
    _check_text(value.name)
    if value.name in values:
        raise _invalid(f"{value.name!r} is defined twice in one graph, the second time as {what}")
    values[value.name] = value


def _define_outputs(values: Scope, nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for name in node.output:
            if name:
                _define(values, ir.Value(name=name), f"an output of a {node.op_type} node")


def _look_up(name: str, scopes: list[Scope], node: onnx.NodeProto) -> ir.Value:
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    raise _invalid(f"node {node.name!r} ({node.op_type}) reads {name!r}, which nothing defines")


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data  # ONNX requires UTF-8, but custom operators store other data


# Declarations of values: their types and documentation, and the form in which they are written.


def _props(entries: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Return metadata as a dictionary, or None if there is none."""
    for entry in entries:
        _check_text(entry.key, entry.value)
    return {entry.key: entry.value for entry in entries} if entries else None


def _type_and_shape(proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the part of a type that onnx-ir can represent; the rest is kept in `unmodeled_fields`."""
    leaf = proto
    _check_text(proto.denotation)
    while (kind := leaf.WhichOneof("value")) in ("sequence_type", "optional_type"):
        leaf = getattr(leaf, kind).elem_type
        _check_text(leaf.denotation)
    tensor = getattr(leaf, kind) if kind in ("tensor_type", "sparse_tensor_type") else None
    if tensor is None or not tensor.elem_type:
        return None, None
    if tensor.elem_type not in DTYPES:
        raise ModelError(
            f"a value has the unknown element type {tensor.elem_type}",
            hint="a newer version of the onnx package may know it",
        )
    _check_text(*(text for dim in tensor.shape.dim for text in (dim.dim_param, dim.denotation)))
    return serde.deserialize_type_proto_for_type(proto), serde.deserialize_type_proto_for_shape(proto)


def _declare(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Add a declaration to a value, which may be declared as an input, in value_info and as an output."""
    declared, shape = _type_and_shape(info.type)
    if value.const_value is None:  # the tensor itself takes precedence
        value.type = declared or value.type
        value.shape = value.shape if shape is None else shape
    if info.metadata_props:
        value.metadata_props.update(_props(info.metadata_props) or {})
    if info.HasField("doc_string"):
        value.doc_string = _field(info, "doc_string")
    return value


def _remember_declaration(value: ir.Value, role: str, info: onnx.ValueInfoProto) -> None:
    """Remember a declaration without its name, so that a renamed value keeps the rest of it."""
    fresh = value_skeleton(value)
    if unmodeled_fields.canonical(fresh) != unmodeled_fields.canonical(info):
        unmodeled_fields.remember(value, role, without(fresh, "name"), without(info, "name"))


def _remember_value_info(graph: ir.Graph, values: Scope, infos: Sequence[onnx.ValueInfoProto]) -> None:
    """Remember value_info that saving would write differently, and its order if that is unusual."""
    unmatched: list[bytes] = []
    listed: set[str] = set()
    for info in infos:
        value = values.get(info.name)
        if value is None or info.name in listed:
            unmatched.append(unmodeled_fields.canonical(info))
            continue
        listed.add(info.name)
        _remember_declaration(value, unmodeled_fields.VALUE_INFO, info)
        if not declared_by_default(value):
            unmodeled_fields.meta(value)[unmodeled_fields.LISTED] = True
    if unmatched:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_INFO] = tuple(unmatched)
    names = tuple(info.name for info in infos)
    if names != tuple(name for name in values if name in listed):
        unmodeled_fields.meta(graph)[unmodeled_fields.INFO_ORDER] = names


def _remember_annotations(graph: ir.Graph, values: Scope, quants: Sequence[onnx.TensorAnnotation]) -> None:
    """Attach quantization annotations to their values, and remember those that fit no value."""
    unmatched: list[bytes] = []
    seen: set[str] = set()
    for quant in quants:
        value = values.get(quant.tensor_name)
        names = _props(quant.quant_parameter_tensor_names) or {}
        plain = onnx.TensorAnnotation(tensor_name=quant.tensor_name, quant_parameter_tensor_names=entries(names))
        if value is None or quant.tensor_name in seen or plain != quant:
            unmatched.append(unmodeled_fields.canonical(quant))
        else:
            unmodeled_fields.meta(value)[unmodeled_fields.QUANT] = names
        seen.add(quant.tensor_name)  # a second one for the same value is unmatched
    if quants:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_QUANT] = tuple(unmatched)
        unmodeled_fields.meta(graph)[unmodeled_fields.QUANT_ORDER] = tuple(quant.tensor_name for quant in quants)
