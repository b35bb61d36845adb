"""Certificates: every rewrite of a result with its new nodes, so that another program can check all of them.

`sardonyx-check` (the folder `checker/`) reads them. A value is referred to by its name in a graph. The new nodes of a
rewrite are added to the graph, and from then on every use of a replaced value is a use of its replacement. Uses that
are renamed, nodes and constants that become unused, and equal constants that are shared need no entry.
`docs/certificate.md` describes the file.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import json_format
from msgspec import Struct
from onnx_ir import serde

from sardonyx.common.atomic_write import write_whole
from sardonyx.ir import io, metadata
from sardonyx.ir.expressions import Expression, definition_of
from sardonyx.ir.facts import Facts, constant_tensor
from sardonyx.ir.rewriter import Observer
from sardonyx.ir.rules import Rule
from sardonyx.ir.scopes import bodies, is_constant, nodes_inside, top_graphs
from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import tensor_proto
from sardonyx.ir.transaction import Substitution
from sardonyx.records.run import Artifact

Json = dict[str, Any]
FORMAT = 1
_MOST_INLINE = 1 << 16  # bytes of a constant that is written into the certificate if the result does not have it
_MOST_SHAPES = 6


class _Constant(Struct, frozen=True, eq=False):
    """A constant that a rewrite created."""

    name: str
    tensor: ir.TensorProtocol
    expression: list[Json] | None  # nodes that define it in terms of other constants; None if it is as stored


class _TooLarge(Exception):
    """A tensor is too large for a certificate."""


class Recorder:
    """Records the rewrites of one candidate."""

    def __init__(self, model: ir.Model) -> None:
        """Prepare before anything in the model is renamed."""
        self._model = model
        self._paths: dict[ir.Graph, str] = {}
        self._body_names: dict[ir.Value, tuple[str, str]] = {}
        self._renamed: Json | None = None
        self._rewrites: list[tuple[Json, list[_Constant]]] = []
        self._tensors: dict[int, str] = {}  # names of constants by the identity of their tensors, which the model keeps
        functions = [f"function:{f.domain}:{f.name}:{f.overload}" for f in model.functions.values()]
        for graph, path in zip(top_graphs(model), ("", *functions), strict=True):
            self._number(graph, path)

    def _number(self, graph: ir.Graph, path: str) -> None:
        """Give the bodies below a graph their paths, in terms of the names in the file."""
        self._paths[graph] = path
        for value in graph.initializers.values():
            if value.const_value is not None and value.name:
                self._tensors[id(value.const_value)] = value.name
        for node in graph:
            tensor = constant_tensor(node) if is_constant(node) else None
            if tensor is not None and node.outputs[0].name:
                self._tensors[id(tensor)] = node.outputs[0].name
            for name, body in bodies(node):
                inner = f"{path}/{next((value.name for value in node.outputs if value.name), '')}.{name}"
                self._number(body, inner)
                own = [*body.inputs, *body.initializers.values(), *(v for each in body for v in each.outputs)]
                self._body_names.update((value, (inner, value.name)) for value in own if value.name)

    def observing(self, observe: Observer | None) -> Observer:
        """Return an observer that records each rewrite before it is carried out, and calls another one."""

        def record(facts: Facts, rule: Rule, root: str, rewrite: Substitution) -> None:
            self._record(rule, rewrite)
            if observe is not None:
                observe(facts, rule, root, rewrite)

        return record

    def _record(self, rule: Rule, rewrite: Substitution) -> None:
        if self._renamed is None:
            self._renamed = {}
            for value, (path, name) in self._body_names.items():
                if value.name != name:
                    self._renamed.setdefault(path, {})[name] = value.name
            self._body_names.clear()
        if not rewrite.pairs:
            return
        graph = rewrite.match.root.graph
        assert graph is not None
        added: list[ir.Value] = []
        nodes = [self._node(node) for node in _new_nodes(rewrite, added)]
        constants: list[_Constant] = []
        for value in dict.fromkeys(added):
            tensor, name = value.const_value, value.name
            assert tensor is not None
            assert name is not None
            definition = definition_of(tensor)
            expression = None if definition is None else self._expression(f"{name}#", definition)
            self._tensors[id(tensor)] = name
            constants.append(_Constant(name, tensor, expression))
        path, pairs = self._paths[graph], [[old.name, new.name] for old, new in rewrite.pairs]
        where: Json = {"graph": path} if path else {}
        what: Json = {"nodes": nodes} if nodes else {}
        entry = {"pass": rule.name, **where, "opset": rewrite.opsets[1], **what, "pairs": pairs}
        self._rewrites.append((entry, constants))

    def _expression(self, result: str, definition: Expression) -> list[Json] | None:
        """Return an expression as nodes; None if it has a large operand that no constant of the graph is."""

        def name_of(tensor: ir.TensorProtocol) -> str | None:
            name = self._tensors.get(id(tensor))
            if name is None and definition_of(tensor) is None and tensor.nbytes > _MOST_INLINE:
                raise _TooLarge
            return name

        try:
            return [_json(node) for node in definition.nodes(result, name_of)]
        except _TooLarge:
            return None

    def _node(self, node: ir.Node) -> Json:
        """Return a node as the JSON of its message; a body of the source is its path, in place of the name."""
        proto = onnx.NodeProto(op_type=node.op_type)
        if node.domain:
            proto.domain = node.domain
        proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
        proto.output.extend(value.name or "" for value in node.outputs)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                graph = self._graph(attribute.as_graph())
                proto.attribute.add(name=attribute.name, type=onnx.AttributeProto.GRAPH, g=graph)
            else:
                proto.attribute.append(serde.serialize_attribute(attribute))
        return _json(proto)

    def _graph(self, graph: ir.Graph) -> onnx.GraphProto:
        """Return a body of the source as its path alone, or a new body as it is."""
        if graph in self._paths:
            return onnx.GraphProto(name=self._paths[graph])
        proto = serde.serialize_graph(graph)
        proto.name = self._paths[graph] = f"new:{len(self._paths)}"
        return proto

    def rewrites(self, result: ir.Model) -> list[Json]:
        """Return the entries of all rewrites; large constants are taken from the result by their names."""
        stored = result.graph.initializers
        return [
            entry | ({"constants": [_written(each, stored) for each in constants]} if constants else {})
            for entry, constants in self._rewrites
        ]

    @property
    def renamed(self) -> Json:
        """The values of bodies that were renamed before the first rewrite: new names by path and name in the file."""
        return self._renamed or {}


def write(path: str | Path, certificate: Json, *, force: bool) -> None:
    """Write a certificate; compressed if the name ends in .gz.

    Raises:
        OutputError: The file exists.
    """
    data = json.dumps(certificate, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    write_whole(str(path), gzip.compress(data, 6, mtime=0) if str(path).endswith(".gz") else data, force=force)


def content(
    recorder: Recorder, result: ir.Model, files: tuple[Artifact, Artifact], trials: Sequence[Mapping[str, Any]]
) -> Json:
    """Return the certificate of a result: of the files of the source and the result, and inputs that it was run on."""
    source, written = files
    props = result.metadata_props
    return {
        "format": "sardonyx certificate",
        "version": FORMAT,
        "source": _digest(source),
        "result": _digest(written),
        "made_by": {"sardonyx": props[metadata.VERSION], "options": json.loads(props[metadata.OPTIONS])},
        "inputs": _inputs(trials),
        "renamed": recorder.renamed,
        "rewrites": recorder.rewrites(result),
    }


def _inputs(trials: Sequence[Mapping[str, Any]]) -> Json:
    """Return the shapes that the source accepts, smallest first, and the ranges of integers among its inputs."""
    tensors: list[dict[str, Array]] = [
        {name: v for name, v in feeds.items() if isinstance(v, np.ndarray)} for feeds in trials
    ]
    shapes = {json.dumps({name: v.shape for name, v in feeds.items()}): feeds for feeds in tensors}
    ordered = sorted(shapes, key=lambda text: sum(v.size for v in shapes[text].values()))
    whole = [(name, v) for feeds in tensors for name, v in feeds.items() if v.dtype.kind in "iu" and v.size]
    ranges = {
        name: [min(int(v.min()) for n, v in whole if n == name), max(int(v.max()) for n, v in whole if n == name)]
        for name in dict.fromkeys(name for name, _ in whole)
    }
    return {"shapes": [json.loads(text) for text in ordered[:_MOST_SHAPES]], "ranges": ranges}


def _digest(artifact: Artifact) -> Json:
    if artifact.path is None:
        return {}
    folder = Path(artifact.path).parent
    data = {name: io.sha256_of(folder / name) for name in io.external_files(artifact.path)}
    return {"sha256": artifact.sha256 or io.sha256_of(artifact.path)} | ({"data": data} if data else {})


def _json(node: onnx.NodeProto) -> Json:
    return json_format.MessageToDict(node, preserving_proto_field_name=True)


def _new_nodes(rewrite: Substitution, constants: list[ir.Value]) -> Iterator[ir.Node]:
    """Yield the nodes that a rewrite adds, producers first, and collect the constants that it adds."""
    waiting = [new for _, new in reversed(rewrite.pairs)]
    done: set[ir.Node] = set()
    while waiting:
        value = waiting[-1]
        producer = value.producer()
        if producer is None or producer.graph is not None or producer in done:
            if _is_new_constant(value):
                constants.append(value)
            waiting.pop()
            continue
        read = [v for each in (producer, *nodes_inside(producer)) for v in each.inputs if v is not None]
        constants += filter(_is_new_constant, read)
        makers = ((v, v.producer()) for v in read)
        missing = [v for v, maker in makers if maker is not None and maker.graph is None and maker not in done]
        if missing:
            waiting += missing
            continue
        done.add(producer)
        waiting.pop()
        yield producer


def _is_new_constant(value: ir.Value) -> bool:
    return value.producer() is None and value.graph is None and value.const_value is not None


def _written(constant: _Constant, stored: Mapping[str, ir.Value]) -> Json:
    tensor = constant.tensor
    entry: Json = {"name": constant.name, "type": tensor.dtype.value, "shape": [int(d) for d in tensor.shape.numpy()]}
    if constant.expression is not None:
        entry["expression"] = constant.expression
    kept = stored.get(constant.name)
    if kept is not None and kept.const_value is tensor:
        return entry
    if constant.expression is None and (tensor.dtype == ir.DataType.STRING or tensor.nbytes <= _MOST_INLINE):
        proto = tensor_proto("", tensor)
        entry["proto"] = base64.b64encode(proto.SerializeToString(deterministic=True)).decode()
    return entry
