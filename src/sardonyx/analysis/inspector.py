"""Look at a model without running it: what it is, what it takes and gives, and which module owns what."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import overload

import onnx_ir as ir

from sardonyx.analysis.attributes import dtype_name
from sardonyx.analysis.census import Census, coverage, modules, ops, port, root_nodes, tied, weights
from sardonyx.analysis.fingerprint import fingerprint
from sardonyx.analysis.module_io import Inside, insides
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_patterns import find_module
from sardonyx.ir.origins import origins, owner
from sardonyx.ir.scopes import bodies, label
from sardonyx.ir.shapes import expr
from sardonyx.ir.tagged_model import Source, Tagged, tagged
from sardonyx.ir.tensors import FileTensor
from sardonyx.provenance import is_within, lineage, module_of
from sardonyx.records.inspection import Body, DynamicDim, FunctionUse, Inspection, ModuleInspection, Port

# Look at one module of a model: what is in it and below it, what it takes and gives, what it shares with others.


def inspect_module(found: Tagged, wanted: str) -> ModuleInspection:
    """The one module that a tag, an instance path or a glob names."""
    everywhere = insides(found.model, _and_above)
    census = Census.of(found.model)
    path = find_module(found.hierarchy, (*found.hierarchy.classes, *everywhere), wanted)
    inside = everywhere.get(path, Inside())
    own = census.among(inside.nodes)
    inputs, outputs = _ports(found.model, inside)
    return ModuleInspection(
        model=found.name,
        path=path,
        tag=found.hierarchy.tag(path, torch_nn=True),
        kind=found.hierarchy.classes.get(path),
        calls=_calls(path, inside.nodes),
        nodes=len(own.nodes) - len(own.constants),
        constants=len(own.constants),
        parameters=own.parameters,
        ops=ops(own.nodes),
        inputs=inputs,
        outputs=outputs,
        weights=weights(own.initializers),
        shared_nodes=tuple(label(node) for node in census.nodes if _straddles(node, path)),
        modules=tuple(module for module in modules(census, found.hierarchy) if is_within(module.path, path)),
        coverage=coverage(own.nodes),
    )


def _and_above(path: str) -> tuple[str, ...]:
    """A module and all modules above it, by their instance paths."""
    return tuple(lineage(module_of(path)))


def _calls(path: str, nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    """The calls of a module that left nodes, as paths; none where there is but one."""
    depth = path.count(".") + 1
    places = dict.fromkeys(".".join(owner(node).split(".")[:depth]) for node in nodes) if path else {}
    calls = tuple(place for place in places if module_of(place) == path)
    return calls if len(calls) > 1 else ()


def _straddles(node: ir.Node, path: str) -> bool:
    """Whether a node does a module's work and that of others outside it."""
    places = {is_within(module_of(origin), path) for origin in origins(node)}
    return len(places) > 1


def _ports(model: ir.Model, inside: Inside) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The boundary, with types and shapes from the file, or where it declares none, from inference."""
    facts = Facts(model)
    if any(value.type is None or value.shape is None for value in (*inside.inputs, *inside.outputs)):
        facts.infer()
    return tuple(_port(v, facts) for v in inside.inputs), tuple(_port(v, facts) for v in inside.outputs)


def _port(value: ir.Value, facts: Facts) -> Port:
    declared = port(value)
    dtype, shape = facts.dtype(value), facts.shape(value)
    kind = dtype_name(dtype) if value.type is None and dtype is not None else declared.type
    if declared.shape is not None or shape is None:
        return Port(declared.name, kind, declared.shape)
    return Port(declared.name, kind, tuple(map(expr.declared, shape)))


@overload
def inspect(source: Source, *, module: None = None) -> Inspection: ...
@overload
def inspect(source: Source, *, module: str) -> ModuleInspection: ...
def inspect(source: Source, *, module: str | None = None) -> Inspection | ModuleInspection:
    """What a model is made of; the weights are not read.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        module: Look at this module alone: a tag, an instance path, or a glob over either that fits one module.

    Raises:
        UsageError: where no module has that name, or several have.
    """
    found = tagged(source)
    return _inspect_model(found) if module is None else inspect_module(found, module)


def _inspect_model(found: Tagged) -> Inspection:
    model, path = found.model, found.path
    census = Census.of(model)
    inputs = tuple(port(value, value.is_initializer()) for value in model.graph.inputs)
    outputs = tuple(port(value) for value in model.graph.outputs)
    return Inspection(
        path=None if path is None else str(path),
        file_bytes=0 if path is None else _bytes_on_disk(path, census),
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        graph=model.graph.name or "",
        fingerprint=fingerprint(model),
        counts=census.counts,
        parameters=census.parameters,
        ops=ops(census.nodes),
        inputs=inputs,
        outputs=outputs,
        dynamic_dims=_dynamic_dims((*inputs, *outputs)),
        functions=_functions(model, census),
        bodies=_bodies(census.nodes),
        modules=modules(census, found.hierarchy),
        coverage=coverage(census.nodes),
        root_nodes=root_nodes(census.nodes),
        tied=tied(census.initializers),
        metadata=dict(model.metadata_props),
    )


def _bytes_on_disk(path: Path, census: Census) -> int:
    """The model file and every file its tensors point into."""
    files = {os.path.realpath(path)}
    files |= {os.path.realpath(tensor.file.path) for tensor in census.tensors if isinstance(tensor, FileTensor)}
    return sum(map(os.path.getsize, files))


def _bodies(nodes: Iterable[ir.Node]) -> tuple[Body, ...]:
    return tuple(
        Body(label(node), node.op_type, attribute, len(graph)) for node in nodes for attribute, graph in bodies(node)
    )


def _functions(model: ir.Model, census: Census) -> tuple[FunctionUse, ...]:
    calls = Counter(node.op_identifier() for node in census.nodes)
    return tuple(
        FunctionUse(function.domain, function.name, len(function), calls[identifier])
        for identifier, function in model.functions.items()
    )


def _dynamic_dims(ports: Iterable[Port]) -> tuple[DynamicDim, ...]:
    where: dict[str, list[str]] = defaultdict(list)
    for each in ports:
        for axis, dim in enumerate(each.shape or ()):
            if not isinstance(dim, int):
                where[dim or "?"].append(f"{each.name}[{axis}]")
    return tuple(DynamicDim(name, tuple(places)) for name, places in where.items())
