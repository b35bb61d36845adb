"""Two graphs alike up to names: a hash of what is computed from what, whoever named it and in whatever order it stands.

The hash of a value is made from the operator that computes it and the hashes of what that reads, so names, the order
of nodes and the sides of a sum do not matter, nor whether an attribute's default is written out; how often a value is
computed does.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.ir.ops import COMMUTATIVE, VARIADIC
from sardonyx.ir.tensors import FileTensor

_EITHER_SIDE = COMMUTATIVE | VARIADIC  # up to rounding
_FEW = 64  # numbers of a constant that counts as part of the structure: sizes, axes, a scale
_NEWEST = onnx.defs.onnx_opset_version()
_Constant = Callable[[ir.TensorProtocol], bytes]


def shape_of(model: ir.Model) -> str:
    """A hash of the graph in which a weight counts by its type and shape, and only small whole numbers by value."""
    return _hashed(model, _by_shape)


def values_of(model: ir.Model) -> str:
    """A hash of the graph in which every constant counts with all its values."""
    seen: dict[tuple[str, int, int], bytes] = {}

    def by_value(tensor: ir.TensorProtocol) -> bytes:
        if not isinstance(tensor, FileTensor):
            return _digest((_kind(tensor), hashlib.sha256(tensor.tobytes()).digest()))
        place = (tensor.file.path, tensor.offset, tensor.length)  # read once, however often it is shared
        if place not in seen:
            seen[place] = hashlib.sha256(tensor.tobytes()).digest()
        return _digest((_kind(tensor), seen[place]))

    return _hashed(model, by_value)


def _hashed(model: ir.Model, constant: _Constant) -> str:
    functions = sorted(model.functions.values(), key=lambda each: each.identifier())
    bodies = (_digest((repr(each.identifier()).encode(), _graph(each.graph, {}, constant))) for each in functions)
    return _digest((_graph(model.graph, {}, constant), *bodies)).hex()[:16]


def _graph(graph: ir.Graph, outside: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    known = dict(outside)
    for index, value in enumerate(graph.inputs):
        known[value] = _digest((b"input", str(index).encode()))
    for value in graph.initializers.values():
        if value.const_value is not None:
            known[value] = _digest((b"constant", constant(value.const_value)))
    nodes: list[bytes] = []
    for node in graph:
        digest = _node(node, known, constant)
        nodes.append(digest)
        for index, value in enumerate(node.outputs):
            known[value] = _digest((digest, str(index).encode()))
    return _digest((*(known[value] for value in graph.outputs), b"|", *sorted(nodes)))


def _node(node: ir.Node, known: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    inputs = [b"none" if value is None else known[value] for value in node.inputs]
    if node.op_type in _EITHER_SIDE and not node.domain:
        inputs.sort()
    usual = defaults(node)
    attributes = [
        _digest((name.encode(), _attribute(attribute, known, constant)))
        for name, attribute in sorted(node.attributes.items())
        if attribute.is_ref() or name not in usual or attribute.value != usual[name]
    ]
    who = f"{node.domain}:{node.op_type}:{node.overload}:{len(node.outputs)}".encode()
    return _digest((who, *attributes, b"|", *inputs))


def defaults(node: ir.Node) -> Mapping[str, Any]:
    """What the operator takes its attributes to be where they are not written out."""
    version = node.version or (node.graph.opset_imports.get(node.domain) if node.graph is not None else None)
    return _defaults(node.domain, node.op_type, version or _NEWEST)


@functools.cache
def _defaults(domain: str, op_type: str, version: int) -> Mapping[str, Any]:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}  # an operator that onnx does not know: what is written is what counts
    given = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}
    return {name: ir.from_proto(default).value for name, default in given.items()}


def _attribute(attribute: ir.Attr, known: dict[ir.Value, bytes], constant: _Constant) -> bytes:
    if attribute.is_ref():
        return repr(attribute.ref_attr_name).encode()
    match attribute.type:
        case ir.AttributeType.GRAPH:
            return _graph(attribute.as_graph(), known, constant)
        case ir.AttributeType.GRAPHS:
            return _digest(_graph(body, known, constant) for body in attribute.as_graphs())
        case ir.AttributeType.TENSOR:
            return constant(attribute.as_tensor())
        case kind:
            return f"{kind}:{attribute.value!r}".encode()


def _by_shape(tensor: ir.TensorProtocol) -> bytes:
    small = tensor.size <= _FEW and tensor.dtype.is_integer()
    return _digest((_kind(tensor), tensor.tobytes() if small else b""))


def _kind(tensor: ir.TensorProtocol) -> bytes:
    return f"{tensor.dtype.name}{list(tensor.shape.numpy())}".encode()


def _digest(parts: Iterable[bytes]) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
