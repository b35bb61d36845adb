"""Decode ModelProto messages to the graph in memory; `unmodeled_fields` keeps what onnx-ir cannot represent.

Loading must notice everything that saving would write differently. Encoding each object and comparing the bytes finds
all of it but is slow; nearly all nodes and declarations in real files have the usual form, which simple rules
recognize. They may report a usual message as unusual, but never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ModelError
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.io.encode import (
    VALUE_FIELDS,
    Kind,
    clear_content,
    declared_by_default,
    function_skeleton,
    graph_skeleton,
    kind_by_content,
    model_skeleton,
    node_skeleton,
    value_skeleton,
    without,
)
from sardonyx.ir.io.tensor_data import Reader
from sardonyx.ir.scopes import Parameter
from sardonyx.ir.tensors import ProtoStrings, ProtoTensor, SparseTensor

_FIELD_NUMBER = {  # of the value, for the usual types of attributes
    kind.value: number
    for name, kind in VALUE_FIELDS
    if (number := onnx.AttributeProto.DESCRIPTOR.fields_by_name[name].number) <= 9
}
_FLOATS = (2, 7)  # a NaN may have payload bits that Python's floats do not preserve


def is_usual_node(proto: onnx.NodeProto) -> bool:
    """Return whether a node has an operator, no empty strings, and usual attributes and metadata."""
    has_operator = False
    for descriptor, value in proto.ListFields():
        match descriptor.number:
            case 1 | 2 | 6:  # inputs, outputs, documentation: always preserved
                pass
            case 3 | 4 | 7:  # name, operator, domain
                has_operator = has_operator or descriptor.number == 4
                if not value or value == "ai.onnx":
                    return False
            case 5:
                if not all(map(_attribute, value)):
                    return False
            case 9:
                if not _has_usual_props(value):
                    return False
            case _:
                return False
    return has_operator


def declares_usually(info: onnx.ValueInfoProto, value: ir.Value) -> bool:
    """Return whether a declaration has the usual form and states exactly what is known about the value."""
    doc_string: str | None = None
    metadata: list[tuple[str, str]] = []
    declared: onnx.TypeProto | None = None
    for descriptor, content in info.ListFields():
        match descriptor.number:
            case 1:
                if not content:
                    return False
            case 2:
                declared = content
            case 3:
                doc_string = content
            case _:
                metadata = [(entry.key, entry.value) for entry in content]
                if not _has_usual_props(content):
                    return False
    if doc_string != value.doc_string or metadata != list(value.metadata_props.items()):
        return False
    return value.type is None and value.shape is None if declared is None else _type(declared, value)


def has_unknown_fields(proto: onnx.ModelProto) -> bool:
    """Return whether the model has fields anywhere that this version of ONNX does not know."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.DiscardUnknownFields()
    return copy.ByteSize() != proto.ByteSize()


def _attribute(proto: onnx.AttributeProto) -> bool:
    number = _FIELD_NUMBER.get(proto.type)
    fields = [(descriptor.number, value) for descriptor, value in proto.ListFields()]
    present = [field for field, _ in fields if field != 13]  # documentation is always preserved
    if number is None or not proto.name:
        return False
    if present == [1, 20]:
        return number >= 7  # an empty list
    if present != [1, number, 20]:
        return False
    return number not in _FLOATS or _no_nan(fields[1][1])


def _no_nan(value: Any) -> bool:
    return value == value if isinstance(value, float) else all(item == item for item in value)


def _has_usual_props(entries: Iterable[onnx.StringStringEntryProto]) -> bool:
    keys: set[str] = set()
    for entry in entries:
        if not (entry.HasField("key") and entry.HasField("value")) or entry.key in keys:
            return False
        keys.add(entry.key)
    return True


def _type(proto: onnx.TypeProto, value: ir.Value) -> bool:
    """Return whether this is a tensor type without denotations that equals the one of the value."""
    value_type = value.type
    if not isinstance(value_type, ir.TensorType) or value_type.denotation or len(proto.ListFields()) != 1:
        return False
    if not proto.HasField("tensor_type"):
        return False
    tensor = proto.tensor_type
    if not tensor.HasField("elem_type") or tensor.elem_type != value_type.dtype.value:
        return False
    if not tensor.HasField("shape"):
        return value.shape is None
    dims = tensor.shape.dim
    if value.shape is None or len(dims) != len(value.shape):
        return False
    return all(map(_dim, dims, value.shape.dims))


def _dim(proto: onnx.TensorShapeProto.Dimension, dim: int | ir.SymbolicDim) -> bool:
    if proto.HasField("denotation"):
        return False
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        return isinstance(dim, int) and proto.dim_value == dim
    if isinstance(dim, int):
        return False
    return dim.value == (proto.dim_param if kind == "dim_param" else None)


Scope = dict[str, ir.Value]

_ELEMENT_TYPES = frozenset(kind.value for kind in ir.DataType)
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
        return _Decoder(read_tensor, unknown_fields=has_unknown_fields(proto)).model(proto)
    except UnicodeDecodeError as error:
        raise _not_utf8(error.object) from error


def _not_utf8(text: bytes) -> ModelError:
    return ModelError(f"a name in the model is not UTF-8: {text[:60]!r}", hint="export the model again")


def _check_text(*texts: str | bytes) -> None:
    """Refuse text that is not UTF-8, which protobuf returns as bytes."""
    for text in texts:
        if isinstance(text, bytes):
            raise _not_utf8(text)


def _invalid(message: str) -> ModelError:
    return ModelError(message, hint="the model is not valid ONNX; onnx.checker.check_model may report details")


class _Decoder:
    def __init__(self, read_tensor: Reader, *, unknown_fields: bool) -> None:
        self._read_tensor = read_tensor
        self._unknown_fields = unknown_fields

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
        read = without(proto, ("graph", "functions", "training_info"), unknown_fields=self._unknown_fields)
        unmodeled_fields.remember(graph, unmodeled_fields.MODEL, model_skeleton(model), read)
        if training:
            unmodeled_fields.meta(graph)[unmodeled_fields.TRAINING] = training
        if self._read_tensor.used_external:
            unmodeled_fields.meta(graph)[unmodeled_fields.EXTERNAL] = True
        return model

    def _graph(self, proto: onnx.GraphProto, scopes: list[Scope]) -> ir.Graph:
        inputs = [_declare(ir.Value(name=info.name), info) for info in proto.input]
        values: Scope = {}
        for value in inputs:
            _define(values, value, "an input")
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
        read = without(proto, _GRAPH_CONTENT, unknown_fields=self._unknown_fields)
        unmodeled_fields.remember(graph, unmodeled_fields.GRAPH, graph_skeleton(graph), read)
        for role, declarations in ((unmodeled_fields.INPUT, proto.input), (unmodeled_fields.OUTPUT, proto.output)):
            for info in declarations:
                _remember_declaration(values[info.name], role, info, sure=self._unknown_fields)
        _remember_value_info(graph, values, proto.value_info, sure=self._unknown_fields)
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
        values: Scope = {}
        for value in inputs:
            _define(values, value, "an input")
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
        read = without(proto, ("node", "value_info"), unknown_fields=self._unknown_fields)
        clear_content(read.attribute_proto, attributes)
        unmodeled_fields.remember(graph, unmodeled_fields.FUNCTION, function_skeleton(function), read)
        _remember_value_info(graph, values, proto.value_info, sure=self._unknown_fields)
        return function

    def _node(self, proto: onnx.NodeProto, scopes: list[Scope]) -> ir.Node:
        _check_text(proto.op_type, proto.domain, proto.overload, proto.name, *proto.input)
        attributes = [self._attribute(attribute, scopes) for attribute in proto.attribute]
        if len(attributes) > 1 and (repeated := _repeated(attribute.name for attribute in attributes)):
            raise _invalid(f"node {proto.name!r} ({proto.op_type}) has attribute {repeated!r} twice")
        node = ir.Node(
            proto.domain,
            proto.op_type,
            [_look_up(name, scopes, proto) if name else None for name in proto.input],
            attributes,
            overload=proto.overload,
            outputs=[scopes[-1][name] if name else ir.Value(name="") for name in proto.output],
            name=proto.name,
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
        if self._unknown_fields or not is_usual_node(proto):
            self._remember_node(node, proto, attributes)
        return node

    @staticmethod
    def _remember_node(node: ir.Node, proto: onnx.NodeProto, attributes: list[ir.Attr]) -> None:
        read = onnx.NodeProto()
        read.CopyFrom(proto)
        clear_content(read.attribute, attributes)
        unmodeled_fields.remember(node, unmodeled_fields.NODE, node_skeleton(node), read)

    def _attribute(self, proto: onnx.AttributeProto, scopes: list[Scope]) -> ir.Attr:
        _check_text(proto.name, proto.ref_attr_name)
        kind = Kind(proto.type) if proto.type else kind_by_content(proto)
        doc_string = _field(proto, "doc_string")
        if proto.ref_attr_name:
            return Parameter(proto.name, proto.ref_attr_name, kind, doc_string=doc_string)
        if (kind == Kind.GRAPH and not proto.HasField("g")) or (
            kind == Kind.SPARSE_TENSOR and not proto.HasField("sparse_tensor")
        ):
            raise _invalid(f"attribute {proto.name!r} has type {kind.name} but no value")
        return ir.Attr(proto.name, kind, self._attribute_value(proto, kind, scopes), doc_string=doc_string)

    def _attribute_value(self, proto: onnx.AttributeProto, kind: Kind, scopes: list[Scope]) -> Any:
        match kind:
            case Kind.INT:
                return proto.i
            case Kind.INTS:
                return proto.ints
            case Kind.FLOAT:
                return proto.f
            case Kind.FLOATS:
                return proto.floats
            case Kind.STRING:
                return _text(proto.s)
            case Kind.STRINGS:
                return [_text(text) for text in proto.strings]
            case Kind.TENSOR:
                return self._read_tensor(proto.t)
            case Kind.TENSORS:
                return [self._read_tensor(tensor) for tensor in proto.tensors]
            case Kind.GRAPH:
                return self._graph(proto.g, scopes)
            case Kind.GRAPHS:
                return [self._graph(graph, scopes) for graph in proto.graphs]
            case Kind.SPARSE_TENSOR:
                return self._sparse(proto.sparse_tensor)
            case Kind.SPARSE_TENSORS:
                return [self._sparse(sparse) for sparse in proto.sparse_tensors]
            case Kind.TYPE_PROTO:
                return ir.TypeAndShape(*_type_and_shape(proto.tp))
            case Kind.TYPE_PROTOS:
                return [ir.TypeAndShape(*_type_and_shape(item)) for item in proto.type_protos]
            case _:
                return None

    def _sparse(self, proto: onnx.SparseTensorProto) -> SparseTensor:
        return SparseTensor(self._read_tensor(proto.values), self._read_tensor(proto.indices), proto.dims)

    def _training(self, proto: onnx.TrainingInfoProto) -> unmodeled_fields.TrainingInfo:
        copy = onnx.TrainingInfoProto()
        copy.CopyFrom(proto)
        tensors: list[ir.TensorProtocol | None] = []
        for graph in (copy.initialization, copy.algorithm):
            for message in unmodeled_fields.tensors_in(graph):
                tensor = self._read_tensor(message)
                is_lazy = not isinstance(tensor, (ProtoTensor, ProtoStrings))
                tensors.append(tensor if is_lazy else None)
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
    if proto.HasField("tensor_type") and not proto.HasField("denotation"):
        return _tensor_type(proto.tensor_type)
    leaf = proto
    _check_text(proto.denotation)
    while (kind := leaf.WhichOneof("value")) in ("sequence_type", "optional_type"):
        leaf = getattr(leaf, kind).elem_type
        _check_text(leaf.denotation)
    if kind not in ("tensor_type", "sparse_tensor_type") or not getattr(leaf, kind).elem_type:
        return None, None
    _check_type(getattr(leaf, kind))
    return serde.deserialize_type_proto_for_type(proto), serde.deserialize_type_proto_for_shape(proto)


def _tensor_type(proto: onnx.TypeProto.Tensor) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the type and shape of a tensor type, which is the most common case."""
    if not proto.elem_type:
        return None, None
    _check_type(proto)
    shape = serde.deserialize_tensor_shape(proto.shape) if proto.HasField("shape") else None
    return ir.TensorType(ir.DataType(proto.elem_type)), shape


def _check_type(proto: onnx.TypeProto.Tensor) -> None:
    if proto.elem_type not in _ELEMENT_TYPES:
        raise ModelError(
            f"a value has the unknown element type {proto.elem_type}",
            hint="a newer version of the onnx package may know it",
        )
    _check_text(*(text for dim in proto.shape.dim for text in (dim.dim_param, dim.denotation)))


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


def _remember_declaration(value: ir.Value, role: str, info: onnx.ValueInfoProto, *, sure: bool) -> None:
    """Remember a declaration that saving would write differently; `sure` skips the quick check."""
    if sure or not declares_usually(info, value):
        encoded = unmodeled_fields.nameless(value_skeleton(value))
        unmodeled_fields.store(value, role, encoded, unmodeled_fields.nameless(info))


def _remember_value_info(graph: ir.Graph, values: Scope, infos: Sequence[onnx.ValueInfoProto], *, sure: bool) -> None:
    """Remember value_info that saving would write differently, and its order if that is unusual."""
    if not infos:
        return
    unmatched: list[bytes] = []
    listed: set[str] = set()
    for info in infos:
        value = values.get(info.name)
        if value is None or info.name in listed:
            unmatched.append(unmodeled_fields.canonical(info))
            continue
        listed.add(info.name)
        _remember_declaration(value, unmodeled_fields.VALUE_INFO, info, sure=sure)
        if not declared_by_default(value):
            unmodeled_fields.meta(value)[unmodeled_fields.LISTED] = True
    if unmatched:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_INFO] = tuple(unmatched)
    usual = [name for name in values if name in listed]
    names = tuple(info.name for info in infos)
    if list(names) != usual:
        unmodeled_fields.meta(graph)[unmodeled_fields.INFO_ORDER] = names


def _remember_annotations(graph: ir.Graph, values: Scope, quants: Sequence[onnx.TensorAnnotation]) -> None:
    """Attach quantization annotations to their values, and remember those that fit no value."""
    if not quants:
        return
    unmatched: list[bytes] = []
    seen: set[str] = set()
    for quant in quants:
        value = values.get(quant.tensor_name)
        names = _props(quant.quant_parameter_tensor_names) or {}
        plain = onnx.TensorAnnotation(tensor_name=quant.tensor_name)
        plain.quant_parameter_tensor_names.extend(
            onnx.StringStringEntryProto(key=key, value=name) for key, name in names.items()
        )
        if value is None or quant.tensor_name in seen or plain != quant:
            unmatched.append(quant.SerializeToString(deterministic=True))
        else:
            unmodeled_fields.meta(value)[unmodeled_fields.QUANT] = names
        seen.add(quant.tensor_name)  # a second one for the same value is unmatched
    if unmatched:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_QUANT] = tuple(unmatched)
    unmodeled_fields.meta(graph)[unmodeled_fields.QUANT_ORDER] = tuple(quant.tensor_name for quant in quants)
