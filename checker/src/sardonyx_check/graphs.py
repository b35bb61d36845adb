"""Models as graphs of values and nodes, read from files."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from sardonyx_check.numbers import Array
from sardonyx_check.operators import RANDOM

_KIND = onnx.AttributeProto
_CONSTANTS = {_KIND.FLOAT: 1, _KIND.FLOATS: 1, _KIND.INT: 7, _KIND.INTS: 7, _KIND.STRING: 8, _KIND.STRINGS: 8}


class Refused(Exception):
    """The certificate does not show that both models are the same."""


class Stored:
    """A constant as it is stored."""

    def __init__(self, proto: onnx.TensorProto) -> None:
        self._proto, self.type, self.shape = proto, proto.data_type, tuple(proto.dims)

    def array(self) -> Array:
        return np.asarray(numpy_helper.to_array(self._proto)).reshape(self.shape)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of type, shape and elements."""
        array = np.ascontiguousarray(self.array())
        data = repr(array.tolist()).encode() if array.dtype.kind in "OU" else array.data if array.size else b""
        return f"{self.type} {self.shape} {hashlib.sha256(data).hexdigest()}"

    @functools.cached_property
    def is_special(self) -> bool:
        """Whether rewrites may rely on the elements: few, or few different ones, whole numbers, or infinities."""
        flat = self.array().astype(np.float64).reshape(-1)
        some = flat[:: max(flat.size // 64, 1)]
        few = flat.size < 64 or (np.unique(some).size <= 4 and np.unique(flat).size <= 4)
        whole = (some == np.rint(some)).all() and (flat == np.rint(flat)).all()
        return bool(few or whole or not np.isfinite(flat).all())


@dataclass(eq=False)
class Value:
    """A value of a graph."""

    name: str
    graph: Graph
    producer: Node | None = None
    index: int = 0  # among the outputs of the producer
    constant: Stored | None = None
    is_fixed: bool = False  # depends on constants alone, and on shapes if the model has no dynamic ones
    denotes: Value | None = None  # a constant that stands for what this value computes
    replacement: Value | None = None
    trusted: Value | None = None  # the value of the source that it is equal to, if the rewrites before it are right

    def final(self) -> Value:
        """Return what this value was replaced by in the end."""
        value = self
        while value.replacement is not None:
            value = value.replacement
        return value


Pair = tuple[int, Value, Value]  # number of the rewrite, old and new value


@dataclass(eq=False)
class Node:
    """A node; the attributes that are graphs are in `bodies`."""

    op: str
    domain: str
    version: int  # of the operator set
    is_new: bool  # of a rewrite
    inputs: list[Value | None]
    attributes: dict[str, onnx.AttributeProto] = field(default_factory=dict)
    bodies: dict[str, Graph] = field(default_factory=dict)
    outputs: list[Value | None] = field(default_factory=list)

    def reads(self) -> Iterator[Value]:
        """Yield the values that it is evaluated on, those that its bodies read included."""
        yield from (v.trusted or v if self.is_new else v for v in self.inputs if v is not None)
        for body in self.bodies.values():
            for inner in body.nodes:
                yield from inner.reads()
            for _, old, new in body.pairs:
                yield from (old, new.denotes or new)
            yield from body.outputs


@dataclass(eq=False)
class Graph:
    """A graph: the main one, the body of a node, or the body of a function."""

    path: str
    parent: Graph | None
    imports: Mapping[str, int]
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # those of rewrites last
    pairs: list[Pair] = field(default_factory=list)

    def find(self, name: str) -> Value:
        """Return the value that a name means here."""
        graph: Graph | None = self
        while graph is not None and name not in graph.values:
            graph = graph.parent
        if graph is None:
            raise Refused(f"nothing computes {name!r} before it is read")
        return graph.values[name].final()

    def new(self, name: str, **fields: Any) -> Value:
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
        self.path, self._data_files = Path(path), set[str]()
        dims = [d for info in self.proto.graph.input for d in info.type.tensor_type.shape.dim]
        self._is_dynamic = any(not d.HasField("dim_value") for d in dims)
        self.graphs: dict[str, Graph] = {}
        self.main = self.graph(self.proto.graph, "", None, _imports(self.proto))
        self.protos = {(f.domain, f.name): f for f in self.proto.functions}
        if len(self.protos) < len(self.proto.functions):
            raise Refused("functions with overloads are not supported")
        self.functions = {key: self.function(f, f"function:{f.domain}:{f.name}:") for key, f in self.protos.items()}

    def _stored(self, tensor: onnx.TensorProto) -> Stored:
        """Return a constant; one in a data file is read from there."""
        if external_data_helper.uses_external_data(tensor):
            self._data_files |= {entry.value for entry in tensor.external_data if entry.key == "location"}
            external_data_helper.load_external_data_for_tensor(tensor, str(self.path.resolve().parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
        return Stored(tensor)

    def digests(self) -> dict[str, Any]:
        """Return the SHA-256 sums of the file and of its data files."""
        sums = {name: _sha256(self.path.parent / name) for name in sorted(self._data_files)}
        return {"sha256": _sha256(self.path)} | ({"data": sums} if sums else {})

    def graph(self, proto: onnx.GraphProto, path: str, parent: Graph | None, imports: Mapping[str, int]) -> Graph:
        graph = self.graphs[path] = Graph(path, parent, imports)
        graph.inputs = [graph.new(info.name) for info in proto.input]
        for tensor in proto.initializer:
            stored = self._stored(tensor)
            if tensor.name not in graph.values:  # otherwise a default that callers may override
                graph.new(tensor.name, constant=stored, is_fixed=True)
        if proto.sparse_initializer:
            raise Refused("sparse initializers are not supported")
        for node in proto.node:
            self.add(graph, node, imports.get("", 0))
        graph.outputs = [graph.find(info.name) for info in proto.output]
        return graph

    def function(self, proto: onnx.FunctionProto, path: str) -> Graph:
        graph = self.graphs[path] = Graph(path, None, _imports(proto) or self.main.imports)
        graph.inputs = [graph.new(name) for name in proto.input]
        for node in proto.node:
            self.add(graph, node, graph.imports.get("", 0))
        graph.outputs = [graph.values.get(name) or graph.new(name) for name in proto.output]  # some may be missing
        return graph

    def add(self, graph: Graph, proto: onnx.NodeProto, version: int, *, is_new: bool = False) -> None:
        """Add a node of the file or of a rewrite to a graph."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        constant = self._constant(proto) if proto.op_type == "Constant" and not domain else None
        if constant is not None:
            graph.new(proto.output[0], constant=constant, is_fixed=True)
            return
        inputs = [graph.find(name) if name else None for name in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = Node(proto.op_type, domain, version, is_new, inputs)
        first = next((name for name in proto.output if name), "")
        for attribute in proto.attribute:
            if attribute.type != _KIND.GRAPH or attribute.ref_attr_name:
                attribute.doc_string = ""
                node.attributes[attribute.name] = attribute
                continue
            path = attribute.g.name if is_new else f"{graph.path}/{first}.{attribute.name}"
            known = self.graphs.get(path) if is_new else None  # a new node may take over a body
            node.bodies[attribute.name] = known or self.graph(attribute.g, path, graph, graph.imports)
            if known is not None and known.parent is not graph:
                raise Refused("a body moves to another graph")
        is_fixed = not node.bodies and node.op not in RANDOM and all(v is None or v.is_fixed for v in inputs)
        if node.op in ("Shape", "Size", "CastLike") and not domain:  # shapes in bodies change from call to call
            static = not self._is_dynamic and not graph.path
            is_fixed = bool(inputs[0] and inputs[0].is_fixed) if node.op == "CastLike" else static
        for index, name in enumerate(proto.output):
            value = graph.new(name, producer=node, index=index, is_fixed=is_fixed) if name else None
            node.outputs.append(value)
        graph.nodes.append(node)

    def _constant(self, proto: onnx.NodeProto) -> Stored | None:
        """Return what a Constant node holds; None if that is a parameter of a function."""
        (attribute,) = proto.attribute
        if attribute.ref_attr_name or attribute.type == _KIND.SPARSE_TENSOR:
            return None
        if attribute.type == _KIND.TENSOR:
            return self._stored(attribute.t)
        array = np.array(helper.get_attribute_value(attribute), object)
        return Stored(helper.make_tensor("", _CONSTANTS[attribute.type], array.shape, array.reshape(-1).tolist()))


def _imports(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {"" if i.domain == "ai.onnx" else i.domain: i.version for i in proto.opset_import}


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
