"""Replay the rewrites of a certificate on the source, and compare the outcome with the result."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, helper

from sardonyx_check.graphs import FLOATS, Graph, Model, Node, Refused, Stored, Value

_OTHER_MEANING = {"GroupNormalization"}  # operators that a newer version computes differently, with equal attributes
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_READS_SHAPE = {"Shape", "Size"}


@dataclass(eq=False)
class Rewrite:
    """One rewrite: pairs of replaced values with their replacements."""

    number: int
    rule: str
    graph: Graph
    pairs: list[tuple[Value, Value]] = field(default_factory=list)


def read(path: str | Path) -> dict[str, Any]:
    """Read a certificate."""
    try:
        data = Path(path).read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, RecursionError):
        raise Refused(f"{path} is not a certificate") from None
    if not isinstance(content, dict) or content.get("format") != "sardonyx certificate":
        raise Refused(f"{path} is not a certificate")
    if content.get("version") != 1:
        raise Refused(f"{path} has format version {content.get('version')}; this program reads 1")
    return content


class Replay:
    """The source after the rewrites of a certificate."""

    def __init__(self, source: Model, result: Model, certificate: dict[str, Any]) -> None:
        self.source, self.result = source, result
        self.rewrites: list[Rewrite] = []
        self.rounded: list[tuple[Value, Stored]] = []  # constants that stand for values, as the result stores them
        self._dynamic = any(not d.HasField("dim_value") for info in source.proto.graph.input
                            for d in info.type.tensor_type.shape.dim)  # fmt: skip
        self._fixed: dict[Value, bool] = {}
        self._created: set[Value] = set()  # constants of the certificate
        self._stored = {name: v.constant for name, v in result.main.values.items() if v.constant is not None}
        try:
            for path, names in certificate.get("renamed", {}).items():
                self._rename(source.graphs[path], names)
            for number, entry in enumerate(certificate["rewrites"]):
                self._rewrite(number, entry)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Refused(f"rewrite {len(self.rewrites)} of the certificate is malformed: {error!r}") from None

    def _rename(self, graph: Graph, names: dict[str, str]) -> None:
        moved = {names.get(name, name): value for name, value in graph.values.items()}
        if len(moved) != len(graph.values):
            raise Refused("two values of a body get the same name")
        graph.values = moved

    def _rewrite(self, number: int, entry: dict[str, Any]) -> None:
        graph = self.source.graphs[entry.get("graph", "")]
        rewrite = Rewrite(number, str(entry["pass"]), graph)
        self.rewrites.append(rewrite)
        olds = [self._value(graph, old) for old, _ in entry["pairs"]]
        order = min((old.producer.order for old in olds if old.producer is not None), default=0.0) + 1e-6
        for constant in entry.get("constants", ()):
            stored = self._constant(constant)
            if stored is not None and (stored.type, stored.shape) != (constant["type"], tuple(constant["shape"])):
                raise Refused(f"constant {constant['name']!r} has another type or shape than the certificate says")
            value = graph.new(constant["name"], constant=stored)
            self._created.add(value)
            if "expression" in constant:
                self._expression(value, constant, graph, int(entry["opset"]), order)
        for written in entry.get("nodes", ()):
            self._node(graph, written, int(entry["opset"]), order)
        for old, (_, name) in zip(olds, entry["pairs"], strict=True):
            new = self._value(graph, name)
            if new is old or old.final() is not old:
                raise Refused(f"rewrite {number} replaces a value by itself")
            rewrite.pairs.append((old, new))
            graph.pairs.append((number, old, new))
        for old, new in rewrite.pairs:
            self._pair(old, new)

    def _expression(self, value: Value, constant: dict[str, Any], graph: Graph, version: int, order: float) -> None:
        """Let a constant stand for what nodes compute from other constants."""
        for written in constant["expression"]:
            self._node(graph, written, version, order)
        defined = self._value(graph, f"{value.name}#")
        if self._is_fixed(defined):  # otherwise it is as stored
            value.denotes = value.trusted = defined

    def _pair(self, old: Value, new: Value) -> None:
        """Replace a value; a new constant in place of a value that depends on constants alone stands for that value."""
        if new in self._created and new.denotes is None and old.producer is not None and self._is_fixed(old):
            if new.constant is None or new.constant.type in FLOATS:
                new.denotes = old
        elif new in self._created and new.constant is None:
            new.constant = old.constant
        old.replacement = new
        if new in self._created or (new.producer is not None and new.producer.is_new):
            new.trusted = new.trusted or old.trusted or old

    def _value(self, graph: Graph, name: str) -> Value:
        value = graph.find(name)
        if value is None:
            raise Refused(f"rewrite {len(self.rewrites) - 1} reads {name!r}, which nothing computes")
        return value.final()

    def _constant(self, entry: dict[str, Any]) -> Stored | None:
        """Return a constant of the certificate, or of the result; None if neither has it."""
        if "proto" in entry:
            return Stored(onnx.TensorProto.FromString(base64.b64decode(entry["proto"])), "")
        return self._stored.get(entry["name"])

    def _node(self, graph: Graph, written: dict[str, Any], version: int, order: float) -> Node:
        node = Node(written["op"], written.get("domain", ""), [], [], {}, version, order=order, is_new=True)
        node.inputs = [self._value(graph, name) if name else None for name in written["in"]]
        for name, value in written.get("attributes", {}).items():
            ((kind, given),) = [(k, v) for k, v in value.items() if k != "type"]
            if kind == "graph":
                node.bodies[name] = self._body(graph, given)
            elif kind == "parameter":
                node.attributes[name] = onnx.AttributeProto(name=name, ref_attr_name=given, type=value["type"])
            elif kind == "proto":
                node.attributes[name] = onnx.AttributeProto.FromString(base64.b64decode(given))
            else:
                node.attributes[name] = _attribute(name, kind, given)
        if node.op == "Constant" and not node.domain:
            proto = onnx.NodeProto(op_type="Constant", attribute=node.attributes.values())
            self._created.add(graph.new(written["out"][0], constant=self.source.constant(proto)))
            return node
        graph.added.append(node)
        for index, name in enumerate(written["out"]):
            node.outputs.append(graph.new(name, producer=node, index=index) if name else None)
        return node

    def _body(self, graph: Graph, given: str | dict[str, str]) -> Graph:
        if isinstance(given, str):
            body = self.source.graphs[given]
            if body.parent is not graph:
                raise Refused("a body moves to another graph")
            return body
        return self.source.graph(onnx.GraphProto.FromString(base64.b64decode(given["proto"])), given["path"], graph,
                                 graph.imports)  # fmt: skip

    def _is_fixed(self, value: Value) -> bool:
        """Return whether a value depends on constants alone (and on shapes, if the model has no dynamic ones)."""
        waiting = [value]
        while waiting:
            at = waiting[-1]
            node = at.producer
            if at in self._fixed or node is None:
                self._fixed.setdefault(at, at.constant is not None or at.denotes is not None)
                waiting.pop()
                continue
            if node.op in _READS_SHAPE and not node.domain:
                self._fixed[at] = not self._dynamic
            elif node.bodies or node.op in _RANDOM:
                self._fixed[at] = False
            else:
                read = [v for v in node.inputs[: 1 if node.op == "CastLike" else None] if v is not None]
                missing = [v for v in read if v not in self._fixed]
                if missing:
                    waiting += missing
                    continue
                self._fixed[at] = all(self._fixed[v] for v in read)
            waiting.pop()
        return self._fixed[value]

    # Comparison with the result

    def compare(self) -> None:
        """Refuse a result that is not the replayed graph."""
        mine, other = self.source.proto.graph, self.result.proto.graph
        for kind, a, b in (("input", mine.input, other.input), ("output", mine.output, other.output)):
            if [v.name for v in a] != [v.name for v in b]:
                raise Refused(f"the result has other {kind}s than the source")
            for x, y in zip(a, b, strict=True):
                if not _same_declaration(x.type, y.type):
                    raise Refused(f"{kind} {x.name!r} of the result has another type or shape")
        Comparison(self).graphs(self.source.main, self.result.main)


class Comparison:
    """Compares graphs from their outputs upwards; names do not matter."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._imports = replay.result.imports
        self._same: dict[Value, Value] = {}  # of the result, for values of the replayed graph
        self._random: dict[Node, Node] = {}
        self._functions: set[tuple[str, str, str]] = set()
        self._met: set[Value] = set()  # outputs of nodes of the result that were compared

    def graphs(self, a: Graph, b: Graph) -> None:
        """Compare two graphs."""
        if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
            raise Refused("a graph of the result has another number of inputs or outputs")
        given = {v.name for v in a.inputs}
        for x, y in zip(a.inputs, b.inputs, strict=True):
            self._same[x] = y
        if a.parent is None and (da := self._defaults(self._replay.source, given)) != self._defaults(
            self._replay.result, given
        ):
            raise Refused(f"the result has other default values of inputs than the source: {sorted(da)}")
        for x, y in zip(a.outputs, b.outputs, strict=True):
            self._values(x.final(), y)
        for node in b.nodes:  # what no output needs must be there before, under the same name
            for y in node.outputs:
                x = a.values.get(y.name) if y is not None else None
                if y is not None and y not in self._met:
                    if x is None:
                        raise Refused(f"the certificate does not say where {y.name!r} of the result comes from")
                    self._values(x, y)

    def _defaults(self, model: Model, inputs: set[str]) -> dict[str, str]:
        tensors = model.proto.graph.initializer
        return {t.name: Stored(t, str(model.path.parent)).digest for t in tensors if t.name in inputs}

    def _values(self, x: Value, y: Value) -> None:
        waiting = [(x, y)]
        done: set[tuple[Value, Value]] = set()
        started: set[tuple[Value, Value]] = set()
        while waiting:
            x, y = waiting[-1]
            if (x, y) in done or self._same.get(x) is y:
                waiting.pop()
                continue
            if (x, y) in started:
                done.add((x, y))
                self._same[x] = y
                waiting.pop()
                continue
            started.add((x, y))
            inputs = self._one(x, y)
            if any(pair in started and pair not in done for pair in inputs):
                raise Refused("the result has a cycle")
            waiting += [pair for pair in inputs if pair not in done]

    def _one(self, x: Value, y: Value) -> list[tuple[Value, Value]]:
        """Compare two values; return the pairs of values that they were computed from."""
        if y.constant is not None or x.constant is not None or x.denotes is not None:
            self._constants(x, y)
            return []
        a, b = x.producer, y.producer
        if a is None or b is None:
            raise Refused(f"the result reads {y.name!r} in place of {x.name!r}")
        if (a.op, a.domain, x.index) != (b.op, b.domain, y.index):
            raise Refused(f"the result has {b.op} where the certificate says {a.op}, for {y.name!r}")
        self._met.update(v for v in b.outputs if v is not None)
        self._attributes(a, b)
        if len(a.inputs) != len(b.inputs) or any(
            (u is None) != (v is None) for u, v in zip(a.inputs, b.inputs, strict=False)
        ):
            raise Refused(f"{b.op} of the result reads another number of values, for {y.name!r}")
        if a.op in _RANDOM and self._random.setdefault(a, b) is not b:
            raise Refused(f"{b.op} of the result is shared or repeated, for {y.name!r}")
        self._version(a, b)
        if a.bodies.keys() != b.bodies.keys():
            raise Refused(f"{b.op} of the result has other bodies")
        pairs = [(u.final(), v) for u, v in zip(a.inputs, b.inputs, strict=False) if u is not None and v is not None]
        for name, body in a.bodies.items():
            self.graphs(body, b.bodies[name])
        self._function(a, b)
        return pairs

    def _function(self, a: Node, b: Node) -> None:
        keys = [key for key in self._replay.source.functions if key[:2] == (a.domain, a.op)]
        for key in keys:
            if key in self._functions:
                continue
            self._functions.add(key)
            other = self._replay.result.functions.get(key)
            if other is None:
                raise Refused(f"the result has no function {a.op}")
            mine, theirs = self._replay.source.protos[key], self._replay.result.protos[key]
            if list(mine.attribute) != list(theirs.attribute) or list(mine.attribute_proto) != list(
                theirs.attribute_proto
            ):
                raise Refused(f"function {a.op} of the result has other attributes")
            self.graphs(self._replay.source.functions[key], other)
        if not keys and any(key[:2] == (b.domain, b.op) for key in self._replay.result.functions):
            raise Refused(f"the result defines {b.op} as a function")

    def _constants(self, x: Value, y: Value) -> None:
        if y.constant is None:
            raise Refused(f"the result computes {y.name!r}, which is a constant in the certificate")
        if x.denotes is not None:
            self._replay.rounded.append((x, y.constant))
            return
        if x.constant is None or (x.constant is not y.constant and x.constant.digest != y.constant.digest):
            raise Refused(f"constant {y.name!r} of the result is not the one of the certificate")

    def _attributes(self, a: Node, b: Node) -> None:
        if {n: _plain(v) for n, v in a.attributes.items()} != {n: _plain(v) for n, v in b.attributes.items()}:
            raise Refused(f"{b.op} of the result has other attributes than the certificate says")

    def _version(self, a: Node, b: Node) -> None:
        """Refuse a node whose operator means something else in the operator set of the result."""
        if a.domain or a.version == b.version or any(k[:2] == ("", a.op) for k in self._replay.source.functions):
            return
        try:
            old, new = defs.get_schema(a.op, a.version, ""), defs.get_schema(a.op, b.version, "")
        except defs.SchemaError:
            raise Refused(f"{a.op} is not defined in opset {b.version}") from None
        if old.since_version == new.since_version:
            return
        for name, attribute in new.attributes.items():
            before = old.attributes.get(name)
            if name not in a.attributes and before is not None and before.default_value != attribute.default_value:
                raise Refused(f"{a.op} has another default of {name} in opset {b.version}")
        lost = [name for name in a.attributes if name not in new.attributes]
        names = [formal.name for formal in old.inputs], [formal.name for formal in new.inputs[: len(old.inputs)]]
        if lost or a.op in _OTHER_MEANING or (names[0] != names[1] and len(a.inputs) > 1) or _changed(a.op, old, new):
            raise Refused(f"{a.op} of opset {a.version} is not the one of opset {b.version}")


def _changed(op: str, old: defs.OpSchema, new: defs.OpSchema) -> bool:
    """Return whether the meaning of explicit attributes changed between two versions."""
    return op in ("Softmax", "LogSoftmax", "Hardmax") and old.since_version < 13 <= new.since_version


def _attribute(name: str, kind: str, value: Any) -> onnx.AttributeProto:
    kinds = {"int": 2, "float": 1, "string": 3, "ints": 7, "floats": 6, "strings": 8}
    return helper.make_attribute(name, value, attr_type=kinds[kind])


def _plain(attribute: onnx.AttributeProto) -> bytes:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    copy.doc_string = ""
    if copy.type == copy.TENSOR:
        return Stored(attribute.t, "").digest.encode()
    return copy.SerializeToString(deterministic=True)


def _same_declaration(a: onnx.TypeProto, b: onnx.TypeProto) -> bool:
    if a.WhichOneof("value") != b.WhichOneof("value") or a.tensor_type.elem_type != b.tensor_type.elem_type:
        return False
    if a.WhichOneof("value") != "tensor_type" or not a.tensor_type.HasField("shape"):
        return True
    dims = [[(d.dim_param, d.dim_value) for d in t.tensor_type.shape.dim] for t in (a, b)]
    return dims[0] == dims[1]
