"""Models as graphs of values and nodes, read from files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from sardonyx_check.numbers import Array

FLOATS = {1, 10, 11, 16, *range(17, 21), 23, 24, 25}  # ONNX element types that are real numbers here
_KIND = onnx.AttributeProto


class Refused(Exception):
    """The certificate does not show that both models are the same."""


class Stored:
    """A constant as it is stored."""

    def __init__(self, proto: onnx.TensorProto, folder: str) -> None:
        self.proto, self._folder = proto, folder
        self.type, self.shape = proto.data_type, tuple(proto.dims)
        self._digest = ""

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def array(self) -> Array:
        """Read the elements."""
        return np.asarray(numpy_helper.to_array(self.proto, self._folder)).reshape(self.shape)

    @property
    def digest(self) -> str:
        """A digest of type, shape and elements."""
        if not self._digest:
            sum_ = hashlib.sha256(f"{self.type} {self.shape} ".encode())
            array = self.array()
            if array.dtype == object:
                sum_.update("\0".join(map(repr, array.reshape(-1))).encode())
            else:
                sum_.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.size else b"")
            self._digest = sum_.hexdigest()
        return self._digest


@dataclass(eq=False)
class Value:
    """A value of a graph."""

    name: str
    graph: Graph
    producer: Node | None = None
    index: int = 0  # among the outputs of the producer
    constant: Stored | None = None
    denotes: Value | None = None  # a constant that stands for what this value computes
    replacement: Value | None = None
    trusted: Value | None = None  # the value of the source that it is equal to, if the rewrites before it are right

    def final(self) -> Value:
        """Return what this value was replaced by in the end."""
        value = self
        while value.replacement is not None:
            value = value.replacement
        return value


@dataclass(eq=False)
class Node:
    """A node; the attributes that are graphs are in `bodies`."""

    op: str
    domain: str
    inputs: list[Value | None]
    outputs: list[Value | None]
    attributes: dict[str, onnx.AttributeProto]
    version: int  # of the operator set
    bodies: dict[str, Graph] = field(default_factory=dict)
    order: float = 0.0  # when it is evaluated, if it can be
    is_new: bool = False

    def reads(self) -> list[Value | None]:
        """Return the values that it is evaluated on."""
        return [v and (v.trusted or v) for v in self.inputs] if self.is_new else self.inputs


@dataclass(eq=False)
class Graph:
    """A graph: the main one, the body of a node, or the body of a function."""

    path: str
    parent: Graph | None
    imports: Mapping[str, int]
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    added: list[Node] = field(default_factory=list)  # by rewrites
    pairs: list[tuple[int, Value, Value]] = field(default_factory=list)  # number of the rewrite, old and new value

    def find(self, name: str) -> Value | None:
        """Return the value that a name means here."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.values:
                return graph.values[name]
            graph = graph.parent
        return None

    def new(self, name: str, **fields: Any) -> Value:
        """Add a value."""
        if name in self.values:
            raise Refused(f"the name {name!r} is defined twice")
        value = self.values[name] = Value(name, self, **fields)
        return value


class Model:
    """A model with its functions."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.proto = onnx.load(path, load_external_data=False)
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:
            raise Refused(f"{path} is not an ONNX model") from None
        self.path, self._folder = Path(path), str(Path(path).resolve().parent)
        self.imports = {_domain(i.domain): i.version for i in self.proto.opset_import}
        self._data_files: set[str] = set()
        self.graphs: dict[str, Graph] = {}
        self.functions: dict[tuple[str, str, str], Graph] = {}
        self.protos = {(f.domain, f.name, f.overload): f for f in self.proto.functions}
        if len({key[:2] for key in self.protos}) < len(self.protos):
            raise Refused("functions with overloads are not supported")
        self.main = self.graph(self.proto.graph, "", None, self.imports)
        for key, proto in self.protos.items():
            self.functions[key] = self.function(proto, "function:" + ":".join(key))

    def _stored(self, tensor: onnx.TensorProto) -> Stored:
        if external_data_helper.uses_external_data(tensor):
            self._data_files |= {entry.value for entry in tensor.external_data if entry.key == "location"}
        return Stored(tensor, self._folder)

    def digests(self) -> dict[str, Any]:
        """Return the SHA-256 sums of the file and of its data files."""
        sums = {name: _sha256(self.path.parent / name) for name in sorted(self._data_files)}
        return {"sha256": _sha256(self.path)} | ({"data": sums} if sums else {})

    def graph(self, proto: onnx.GraphProto, path: str, parent: Graph | None, imports: Mapping[str, int]) -> Graph:
        """Read a graph."""
        graph = self.graphs[path] = Graph(path, parent, imports)
        for info in proto.input:
            graph.inputs.append(graph.new(info.name))
        for tensor in proto.initializer:
            stored = self._stored(tensor)
            if tensor.name not in graph.values:  # otherwise a default that callers may override
                graph.new(tensor.name, constant=stored)
        if proto.sparse_initializer:
            raise Refused("sparse initializers are not supported")
        self.fill(graph, proto.node)
        graph.outputs = [self._output(graph, info.name) for info in proto.output]
        return graph

    def function(self, proto: onnx.FunctionProto, path: str) -> Graph:
        """Read the body of a function."""
        imports = {_domain(i.domain): i.version for i in proto.opset_import} or self.imports
        graph = self.graphs[path] = Graph(path, None, imports)
        graph.inputs = [graph.new(name) for name in proto.input]
        self.fill(graph, proto.node)
        graph.outputs = [graph.find(name) or graph.new(name) for name in proto.output]  # optional ones may be missing
        return graph

    def _output(self, graph: Graph, name: str) -> Value:
        value = graph.find(name)
        if value is None:
            raise Refused(f"nothing computes the output {name!r}")
        return value

    def fill(self, graph: Graph, protos: Any) -> None:
        """Add the nodes of a graph, which may be in any order."""
        for proto in protos:
            constant = self.constant(proto)
            if constant is not None:
                graph.new(proto.output[0], constant=constant)
                continue
            domain, version = _domain(proto.domain), graph.imports.get("", 0)
            node = Node(proto.op_type, domain, [], [], {}, version, order=len(graph.nodes))
            for index, name in enumerate(proto.output):
                node.outputs.append(graph.new(name, producer=node, index=index) if name else None)
            graph.nodes.append(node)
        rest = iter(graph.nodes)
        for proto in protos:
            if self.constant(proto) is not None:
                continue
            node = next(rest)
            for name in proto.input:
                value = graph.find(name) if name else None
                if name and value is None:
                    raise Refused(f"nothing computes {name!r}, which {proto.op_type} reads")
                node.inputs.append(value)
            while node.inputs and node.inputs[-1] is None:
                node.inputs.pop()
            self.attributes(graph, node, proto)

    def attributes(self, graph: Graph, node: Node, proto: onnx.NodeProto) -> None:
        """Add the attributes of a node, with its bodies."""
        first = next((name for name in proto.output if name), "")
        for attribute in proto.attribute:
            if attribute.type == _KIND.GRAPH and not attribute.ref_attr_name:
                path = f"{graph.path}/{first}.{attribute.name}"
                node.bodies[attribute.name] = self.graph(attribute.g, path, graph, graph.imports)
            else:
                node.attributes[attribute.name] = attribute

    def constant(self, proto: onnx.NodeProto) -> Stored | None:
        """Return what a Constant node holds, or None for another node."""
        if proto.op_type != "Constant" or proto.domain not in ("", "ai.onnx"):
            return None
        (attribute,) = proto.attribute
        if attribute.ref_attr_name or attribute.type == _KIND.SPARSE_TENSOR:
            return None
        if attribute.type == _KIND.TENSOR:
            return self._stored(attribute.t)
        types = {_KIND.FLOAT: 1, _KIND.FLOATS: 1, _KIND.INT: 7, _KIND.INTS: 7, _KIND.STRING: 8, _KIND.STRINGS: 8}
        value = helper.get_attribute_value(attribute)
        many = isinstance(value, (list, tuple))
        held = list(value) if isinstance(value, (list, tuple)) else [value]
        return Stored(helper.make_tensor("", types[attribute.type], [len(held)] if many else [], held), "")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def captured(node: Node) -> Iterator[Value]:
    """Yield the values that the bodies of a node read, at any depth."""
    for body in node.bodies.values():
        for inner in (*body.nodes, *body.added):
            yield from (value for value in inner.reads() if value is not None)
            yield from captured(inner)
        for _, old, new in body.pairs:
            yield from (old, new.denotes or new)
        yield from body.outputs
