"""Replay the rewrites of a certificate on the source, and compare the outcome with the result."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, serialization

from sardonyx_check.graphs import Graph, Model, Node, Refused, Stored, Value
from sardonyx_check.operators import FLOATS, RANDOM

_JSON = serialization.registry.get("json")
_SOFTMAX = {"Softmax", "LogSoftmax", "Hardmax"}  # of which opset 13 changed the meaning


def read(path: str | Path) -> dict[str, Any]:
    """Read a certificate."""
    try:
        data = Path(path).read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != "sardonyx certificate":
        raise Refused(f"{path} is not a certificate")
    if content.get("version") != 1:
        raise Refused(f"{path} has format version {content.get('version')}; this program reads 1")
    return content


class Replay:
    """The source after the rewrites of a certificate."""

    def __init__(self, source: Model, result: Model, certificate: dict[str, Any]) -> None:
        self.source, self.result = source, result
        self.rewrites: list[tuple[str, Graph]] = []  # the pass, and the graph
        self.rounded: list[tuple[Value, Stored]] = []  # constants that stand for values, as the result stores them
        self._created: set[Value] = set()  # constants of the certificate
        try:
            for path, names in certificate.get("renamed", {}).items():
                values = source.graphs[path].values
                source.graphs[path].values = {names.get(name, name): value for name, value in values.items()}
                if len(source.graphs[path].values) != len(values):
                    raise Refused("two values of a body get the same name")
            for entry in certificate["rewrites"]:
                self._rewrite(entry)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Refused(f"rewrite {len(self.rewrites)} of the certificate is malformed: {error!r}") from None

    def _rewrite(self, entry: dict[str, Any]) -> None:
        graph, version, number = self.source.graphs[entry.get("graph", "")], int(entry["opset"]), len(self.rewrites)
        self.rewrites.append((str(entry["pass"]), graph))
        olds = [graph.find(old) for old, _ in entry["pairs"]]
        for constant in entry.get("constants", ()):
            self._constant(graph, constant, version)
        self._nodes(graph, entry.get("nodes", ()), version)
        pairs = [(old, graph.find(new)) for old, (_, new) in zip(olds, entry["pairs"], strict=True)]
        for old, new in pairs:
            if new.final() is old or old.final() is not old:
                raise Refused(f"rewrite {number} replaces a value by itself, or twice")
            graph.pairs.append((number, old, new))
            self._pair(old, new)

    def _nodes(self, graph: Graph, nodes: list[dict[str, Any]], version: int) -> None:
        """Add new nodes; a Constant among them is a constant of the certificate."""
        for node in nodes:
            try:
                proto = _JSON.deserialize_proto(json.dumps(node), onnx.NodeProto())
            except Exception:  # of protobuf, which this program does not import
                raise Refused(f"a node of rewrite {len(self.rewrites) - 1} is malformed") from None
            self.source.add(graph, proto, version, is_new=True)
            if proto.op_type == "Constant":
                self._created.add(graph.values[proto.output[0]])

    def _constant(self, graph: Graph, entry: dict[str, Any], version: int) -> None:
        """Add a constant, of the certificate or of the result; it may stand for what nodes compute from others."""
        found = self.result.main.values.get(entry["name"])
        stored = found and found.constant
        if "proto" in entry:
            stored = Stored(onnx.TensorProto.FromString(base64.b64decode(entry["proto"])))
        if stored is not None and (stored.type, stored.shape) != (entry["type"], tuple(entry["shape"])):
            raise Refused(f"constant {entry['name']!r} has another type or shape than the certificate says")
        value = graph.new(entry["name"], constant=stored, is_fixed=True)
        self._created.add(value)
        self._nodes(graph, entry.get("expression", ()), version)
        if "expression" in entry and (defined := graph.find(f"{value.name}#")).is_fixed:
            value.denotes = value.trusted = defined

    def _pair(self, old: Value, new: Value) -> None:
        """Replace a value; a new constant in place of a value that depends on constants alone stands for that value."""
        is_created = new in self._created
        if is_created and new.denotes is None and old.producer is not None and old.is_fixed:
            if new.constant is None or new.constant.type in FLOATS:
                new.denotes = old
        elif is_created and new.constant is None:
            new.constant = old.constant
        old.replacement = new
        if is_created or (new.producer is not None and new.producer.is_new):
            new.trusted = new.trusted or old.trusted or old

    def compare(self) -> None:
        """Refuse a result that is not the replayed graph."""
        mine, other = self.source.proto.graph, self.result.proto.graph
        for kind, a, b in (("input", mine.input, other.input), ("output", mine.output, other.output)):
            if [v.name for v in a] != [v.name for v in b]:
                raise Refused(f"the result has other {kind}s than the source")
            for x, y in zip(a, b, strict=True):
                has_shape = x.type.tensor_type.HasField("shape")
                if _declaration(x.type, has_shape) != _declaration(y.type, has_shape):
                    raise Refused(f"{kind} {x.name!r} of the result has another type or shape")
        if _defaults(mine) != _defaults(other):
            raise Refused("the result has other default values of inputs than the source")
        Comparison(self).graphs(self.source.main, self.result.main)


class Comparison:
    """Compares graphs from their outputs upwards; names do not matter."""

    def __init__(self, replay: Replay) -> None:
        self._rounded, self._source, self._result = replay.rounded, replay.source, replay.result
        self._same: set[tuple[Value, Value]] = set()  # values of the replayed graph and of the result
        self._random: dict[Node, Node] = {}
        self._functions: set[tuple[str, str]] = set()
        self._met: set[Value] = set()  # outputs of nodes of the result that were compared

    def graphs(self, a: Graph, b: Graph) -> None:
        if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
            raise Refused("a graph of the result has another number of inputs or outputs")
        self._same.update(zip(a.inputs, b.inputs, strict=True))
        self._values([(x.final(), y) for x, y in zip(a.outputs, b.outputs, strict=True)])
        for y in (y for node in b.nodes for y in node.outputs if y is not None and y not in self._met):
            if y.name not in a.values:  # what no output needs must be there before, under the same name
                raise Refused(f"the certificate does not say where {y.name!r} of the result comes from")
            self._values([(a.values[y.name], y)])

    def _values(self, waiting: list[tuple[Value, Value]]) -> None:
        """Compare values and all that they were computed from; the result has no cycles, so that this ends."""
        while waiting:
            pair = waiting.pop()
            if pair not in self._same:
                self._same.add(pair)
                waiting += self._one(*pair)

    def _one(self, x: Value, y: Value) -> list[tuple[Value, Value]]:
        """Compare two values; return the pairs of values that they were computed from."""
        a, b = x.producer, y.producer
        if y.constant is not None or x.constant is not None or x.denotes is not None:
            if y.constant is None:
                raise Refused(f"the result computes {y.name!r}, which is a constant in the certificate")
            if x.denotes is not None:
                self._rounded.append((x, y.constant))
            elif x.constant is None or (x.constant is not y.constant and x.constant.digest != y.constant.digest):
                raise Refused(f"constant {y.name!r} of the result is not the one of the certificate")
            return []
        if a is None or b is None:
            raise Refused(f"the result reads {y.name!r} in place of {x.name!r}")
        if (a.op, a.domain, x.index) != (b.op, b.domain, y.index):
            raise Refused(f"the result has {b.op} where the certificate says {a.op}, for {y.name!r}")
        if _signature(a) != _signature(b):
            raise Refused(f"{b.op} of the result has other attributes or inputs, for {y.name!r}")
        if a.op in RANDOM and self._random.setdefault(a, b) is not b:
            raise Refused(f"{b.op} of the result is shared or repeated, for {y.name!r}")
        self._met.update(v for v in b.outputs if v is not None)
        for name, body in a.bodies.items():
            self.graphs(body, b.bodies[name])
        if (a.domain, a.op) in {**self._source.protos, **self._result.protos}:
            self._function((a.domain, a.op))
        elif not a.domain and a.version != b.version:
            _compare_versions(a, b.version)
        return [(u.final(), v) for u, v in zip(a.inputs, b.inputs, strict=True) if u is not None and v is not None]

    def _function(self, key: tuple[str, str]) -> None:
        """Compare the bodies of a function."""
        if key in self._functions:
            return
        self._functions.add(key)
        mine, theirs = self._source.protos.get(key), self._result.protos.get(key)
        if mine is None or theirs is None:
            raise Refused(f"{key[1]} is a function in one of the models only")
        if any(list(getattr(mine, k)) != list(getattr(theirs, k)) for k in ("attribute", "attribute_proto")):
            raise Refused(f"function {key[1]} of the result has other attributes")
        self.graphs(self._source.functions[key], self._result.functions[key])


def _compare_versions(node: Node, version: int) -> None:
    """Refuse a node whose operator means something else in the operator set of the result."""
    try:
        old, new = defs.get_schema(node.op, node.version, ""), defs.get_schema(node.op, version, "")
    except defs.SchemaError:
        raise Refused(f"{node.op} is not defined in opset {version}") from None
    both = (old.attributes.keys() & new.attributes.keys()) - node.attributes.keys()
    defaults = any(old.attributes[name].default_value != new.attributes[name].default_value for name in both)
    inputs = any(x.name != y.name for x, y in zip(old.inputs, new.inputs, strict=False)) and len(node.inputs) > 1
    meaning = node.op == "GroupNormalization" or (node.op in _SOFTMAX and old.since_version < 13 <= new.since_version)
    differ = defaults or inputs or meaning or node.attributes.keys() - new.attributes.keys()
    if old.since_version != new.since_version and differ:
        raise Refused(f"{node.op} of opset {node.version} is not the one of opset {version}")


def _signature(node: Node) -> tuple[Any, ...]:
    """Return the attributes of a node, and which inputs and bodies it has."""
    tensors = {name: Stored(a.t).digest for name, a in node.attributes.items() if a.type == a.TENSOR}
    others = {name: a.SerializeToString(deterministic=True) for name, a in node.attributes.items()}
    return others | tensors, [v is None for v in node.inputs], set(node.bodies)


def _defaults(graph: onnx.GraphProto) -> dict[str, str]:
    inputs = {info.name for info in graph.input}
    return {t.name: Stored(t).digest for t in graph.initializer if t.name in inputs}


def _declaration(type_: onnx.TypeProto, has_shape: bool) -> tuple[Any, ...]:
    dims = [(d.dim_param, d.dim_value) for d in type_.tensor_type.shape.dim]
    return type_.WhichOneof("value"), type_.tensor_type.elem_type, dims if has_shape else None
