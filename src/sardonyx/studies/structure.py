"""Hashes of the structure of a graph, equal for graphs that are equal up to names.

The hash of a value is computed from its operator and the hashes of the operands:
hash(v) = H(operator, attributes, hash(operand 1), …). So names, the order of nodes, the order of the operands of
commutative operators, and explicit default attributes do not matter. How often a value is computed does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import onnx
import onnx_ir as ir

from sardonyx.analysis.attributes import default_attributes
from sardonyx.ir.ops import COMMUTATIVE, VARIADIC
from sardonyx.ir.tensors import FileTensor

_ANY_ORDER = COMMUTATIVE | VARIADIC  # of their operands, up to rounding
_MAX_SIZES = 64  # elements of a constant whose values are part of the structure: sizes, axes
_NEWEST = onnx.defs.onnx_opset_version()
_Constant = Callable[[ir.TensorProtocol], bytes]


def shape_of(model: ir.Model) -> str:
    """Return a hash of the graph: weights by type and shape, and only small integer constants by value."""
    return _hashed(model, _by_shape)


def values_of(model: ir.Model) -> str:
    """Return a hash of the graph with the values of all constants."""
    hashes: dict[tuple[str, int, int], bytes] = {}

    def by_value(tensor: ir.TensorProtocol) -> bytes:
        if not isinstance(tensor, FileTensor):
            return _digest((_kind(tensor), hashlib.sha256(tensor.tobytes()).digest()))
        place = (tensor.file.path, tensor.offset, tensor.length)  # a shared tensor is read once
        if place not in hashes:
            hashes[place] = hashlib.sha256(tensor.tobytes()).digest()
        return _digest((_kind(tensor), hashes[place]))

    return _hashed(model, by_value)


def _hashed(model: ir.Model, constant: _Constant) -> str:
    functions = sorted(model.functions.values(), key=lambda function: function.identifier())
    bodies = (
        _digest((repr(function.identifier()).encode(), _graph(function.graph, {}, constant))) for function in functions
    )
    return _digest((_graph(model.graph, {}, constant), *bodies)).hex()[:16]


def _graph(graph: ir.Graph, outside: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    hashes = dict(outside)
    for index, value in enumerate(graph.inputs):
        hashes[value] = _digest((b"input", str(index).encode()))
    for value in graph.initializers.values():
        if value.const_value is not None:
            hashes[value] = _digest((b"constant", constant(value.const_value)))
    nodes: list[bytes] = []
    for node in graph:
        digest = _node(node, hashes, constant)
        nodes.append(digest)
        for index, value in enumerate(node.outputs):
            hashes[value] = _digest((digest, str(index).encode()))
    return _digest((*(hashes[value] for value in graph.outputs), b"|", *sorted(nodes)))


def _node(node: ir.Node, hashes: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    inputs = [b"none" if value is None else hashes[value] for value in node.inputs]
    if node.op_type in _ANY_ORDER and not node.domain:
        inputs.sort()
    default = defaults(node)
    attributes = [
        _digest((name.encode(), _attribute(attribute, hashes, constant)))
        for name, attribute in sorted(node.attributes.items())
        if attribute.is_ref() or name not in default or attribute.value != default[name].value
    ]
    operator = f"{node.domain}:{node.op_type}:{node.overload}:{len(node.outputs)}".encode()
    return _digest((operator, *attributes, b"|", *inputs))


def defaults(node: ir.Node) -> Mapping[str, ir.Attr]:
    """Return the attributes of a node's operator that have a default."""
    version = node.version or (node.graph.opset_imports.get(node.domain) if node.graph is not None else None)
    return default_attributes(node.domain, node.op_type, version or _NEWEST)


def _attribute(attribute: ir.Attr, hashes: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    if attribute.is_ref():
        return repr(attribute.ref_attr_name).encode()
    match attribute.type:
        case ir.AttributeType.GRAPH:
            return _graph(attribute.as_graph(), hashes, constant)
        case ir.AttributeType.GRAPHS:
            return _digest(_graph(body, hashes, constant) for body in attribute.as_graphs())
        case ir.AttributeType.TENSOR:
            return constant(attribute.as_tensor())
        case kind:
            return f"{kind}:{attribute.value!r}".encode()


def _by_shape(tensor: ir.TensorProtocol) -> bytes:
    small = tensor.size <= _MAX_SIZES and tensor.dtype.is_integer()
    return _digest((_kind(tensor), tensor.tobytes() if small else b""))


def _kind(tensor: ir.TensorProtocol) -> bytes:
    return f"{tensor.dtype.name}{list(tensor.shape.numpy())}".encode()


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
