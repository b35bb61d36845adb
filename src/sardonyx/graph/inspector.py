"""Look at a model without running it: what it is, what it takes and gives, and which module owns what."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx import tree
from sardonyx.graph.facts import constant_tensor
from sardonyx.graph.io import from_proto, load
from sardonyx.graph.origins import attach, owner
from sardonyx.graph.scopes import bodies, is_constant, label, scopes
from sardonyx.graph.tensors import FileTensor
from sardonyx.inspection import Body, DynamicDim, FunctionUse, Inspection, Module, OpUse, Port
from sardonyx.provenance import Hierarchy, lowest_common
from sardonyx.record import Counts

# Integers, bools and strings in a graph are indices, shapes and masks, single numbers are exponents and epsilons; what
# training fitted is everything else.
_NOT_WEIGHTS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING})


@dataclass(frozen=True, slots=True)
class _Census:
    """One walk over all nodes and constants, bodies and functions included; None for data that is not a tensor."""

    nodes: tuple[ir.Node, ...]
    constants: Mapping[ir.Node, ir.TensorProtocol | None]
    initializers: Mapping[ir.Value, ir.TensorProtocol | None]

    @property
    def tensors(self) -> tuple[ir.TensorProtocol, ...]:
        """All constant data."""
        return tuple(data for data in (*self.constants.values(), *self.initializers.values()) if data is not None)


def inspect(source: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Inspection:
    """What a model file, a `ModelProto` or an `onnx_ir.Model` is made of; the weights are not read."""
    path = None
    if isinstance(source, onnx.ModelProto):
        model = from_proto(source)
    elif isinstance(source, ir.Model):
        model = source.clone()  # tags are read into the nodes, and the caller's model is not ours
    else:
        path = Path(source)
        model = load(path)
    hierarchy = attach(model)
    census = _take(model)
    inputs = tuple(_port(value, value.is_initializer()) for value in model.graph.inputs)
    outputs = tuple(_port(value) for value in model.graph.outputs)
    return Inspection(
        path=None if path is None else str(path),
        file_bytes=0 if path is None else _bytes_on_disk(path, census),
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        graph=model.graph.name or "",
        counts=_counts(census),
        parameters=sum(map(_weights, census.tensors)),
        ops=_ops(census),
        inputs=inputs,
        outputs=outputs,
        dynamic_dims=_dynamic_dims((*inputs, *outputs)),
        functions=_functions(model, census),
        bodies=tuple(
            Body(label(node), node.op_type, attribute, len(graph))
            for node in census.nodes
            for attribute, graph in bodies(node)
        ),
        modules=_modules(census, hierarchy),
        metadata=dict(model.metadata_props),
    )


def _take(model: ir.Model) -> _Census:
    nodes: list[ir.Node] = []
    initializers: list[ir.Value] = []
    for scope in scopes(model):
        nodes.extend(scope.graph)
        initializers.extend(scope.graph.initializers.values())
    constants = {node: constant_tensor(node) for node in nodes if is_constant(node)}
    return _Census(tuple(nodes), constants, {value: value.const_value for value in initializers})


def _counts(census: _Census) -> Counts:
    return Counts(
        nodes=len(census.nodes) - len(census.constants),
        constants=len(census.constants),
        initializers=len(census.initializers),
        bytes=sum(tensor.nbytes for tensor in census.tensors),
    )


def _weights(tensor: ir.TensorProtocol | None) -> int:
    return 0 if tensor is None or tensor.size < 2 or tensor.dtype in _NOT_WEIGHTS else tensor.size


def _bytes_on_disk(path: Path, census: _Census) -> int:
    """The model file and every file its tensors point into."""
    files = {os.path.realpath(path)}
    files |= {os.path.realpath(tensor.file.path) for tensor in census.tensors if isinstance(tensor, FileTensor)}
    return sum(map(os.path.getsize, files))


def _ops(census: _Census) -> tuple[OpUse, ...]:
    uses = Counter((node.domain, node.op_type) for node in census.nodes)
    ordered = sorted(uses.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OpUse(domain, op_type, count) for (domain, op_type), count in ordered)


def _functions(model: ir.Model, census: _Census) -> tuple[FunctionUse, ...]:
    calls = Counter(node.op_identifier() for node in census.nodes)
    return tuple(
        FunctionUse(function.domain, function.name, len(function), calls[identifier])
        for identifier, function in model.functions.items()
    )


def _port(value: ir.Value, overridable: bool = False) -> Port:
    shape = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Port(value.name or "", _type_name(value.type), shape, overridable)


def _type_name(kind: ir.TypeProtocol | None) -> str:
    if kind is None:
        return "unknown"
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return f"{type(kind).__name__.removesuffix('Type').lower()}({_type_name(kind.elem_type)})"
    name = kind.dtype.name.lower()
    return f"sparse({name})" if isinstance(kind, ir.SparseTensorType) else name


def _dynamic_dims(ports: Iterable[Port]) -> tuple[DynamicDim, ...]:
    where: dict[str, list[str]] = defaultdict(list)
    for port in ports:
        for axis, dim in enumerate(port.shape or ()):
            if not isinstance(dim, int):
                where[dim or "?"].append(f"{port.name}[{axis}]")
    return tuple(DynamicDim(name, tuple(places)) for name, places in where.items())


def _modules(census: _Census, hierarchy: Hierarchy) -> tuple[Module, ...]:
    """Every module that owns a node or a parameter, and all modules above it."""
    nodes: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for node in census.nodes:
        nodes[owner(node)] += node not in census.constants
    for node, tensor in census.constants.items():
        parameters[owner(node)] += _weights(tensor)
    for value, tensor in census.initializers.items():
        parameters[lowest_common(map(owner, value.consumers()))] += _weights(tensor)
    paths = dict.fromkeys((*nodes, *parameters))
    entries = (tree.Entry(path, "", (nodes[path], parameters[path])) for path in paths)
    return tuple(
        Module(row.branch.path, hierarchy.tag(row.branch.path), row.own[0], row.total[0], row.own[1], row.total[1])
        for row in tree.rows(tree.build(entries, width=2, fold=False))
    )
