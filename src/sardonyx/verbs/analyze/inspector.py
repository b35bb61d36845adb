"""`sardonyx.inspect`: describe a model without running it: interface, operators, modules and their borders.

A module contains its own nodes and those of all modules below it. A `Constant` belongs to every module that reads it
and is never an input of a module. The time is proportional to the number of nodes times the depth of the modules.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import overload

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import find_module
from sardonyx.ir.origins import Source, Tagged, origins, owner, tagged
from sardonyx.ir.plain_data import dtype_name
from sardonyx.ir.scopes import bodies, is_constant, label, scopes, top_graphs
from sardonyx.ir.shapes import expr
from sardonyx.ir.tensors import FileTensor
from sardonyx.records.inspection import Body, DynamicDim, FunctionUse, Inspection, ModuleInspection, Port
from sardonyx.records.provenance import is_within, lineage, module_of
from sardonyx.verbs.analyze.census import Census, coverage, evidence, modules, ops, port, root_nodes, tied, weights
from sardonyx.verbs.analyze.fingerprint import fingerprint

Chain = Callable[[str], tuple[str, ...]]  # a path -> the keys of the modules from the model down to it


class ModuleContents(Struct, frozen=True, eq=False):
    """The contents of one module; the sets are ordered, the nodes in the order in which they finish."""

    nodes: dict[ir.Node, None] = field(default_factory=dict[ir.Node, None])
    edges: dict[tuple[ir.Node, ir.Node], None] = field(default_factory=dict[tuple[ir.Node, ir.Node], None])
    inputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # produced outside, without initializers
    outputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # read outside, or outputs of the model


def module_contents(model: ir.Model, chain: Chain) -> dict[str, ModuleContents]:
    """Return the contents of every module that has a node, by the keys that `chain` returns."""
    nodes = [node for graph in top_graphs(model) for node in _inner_first(graph)]
    homes: dict[ir.Node | None, dict[str, None]] = {None: {}}  # the keys of all modules that contain a node
    for node in sorted(nodes, key=is_constant):  # the order of modules is that in which their other nodes run
        readers = node.outputs[0].consumers() if is_constant(node) else ()
        homes[node] = dict.fromkeys(key for each in (node, *readers) for key in chain(owner(each)))
    holders = {value: scope.holder for scope in scopes(model) for value in scope.graph.inputs}
    modules: dict[str, ModuleContents] = defaultdict(ModuleContents)
    for reader in nodes:
        for key in homes[reader]:
            modules[key].nodes[reader] = None
        # the outputs of a body flow into the node that owns it, from which its inputs come
        results = (value for _, body in bodies(reader) for value in body.outputs if value.producer() is not None)
        for value in filter(None, (*reader.inputs, *results)):
            producer = value.producer()
            made_in = homes[producer or holders.get(value)]
            for key in homes[reader]:
                if key not in made_in and not value.is_initializer():
                    modules[key].inputs[value] = None
                elif producer is not None:
                    modules[key].edges[producer, reader] = None
            for key in made_in if producer is not None and not is_constant(producer) else ():
                if key not in homes[reader]:
                    modules[key].outputs[value] = None
    for value in (value for graph in top_graphs(model) for value in graph.outputs):
        for key in homes[value.producer()]:
            modules[key].outputs[value] = None
    return dict(modules)


def _inner_first(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yield all nodes of a graph and its bodies in the order in which they finish."""
    for node in graph:
        for _, body in bodies(node):
            yield from _inner_first(body)
        yield node


def _inspect_module(source: Tagged, pattern: str) -> ModuleInspection:
    """Describe the one module that a tag, an instance path or a glob selects."""
    contents = module_contents(source.model, lambda path: tuple(lineage(module_of(path))))
    path = find_module(source.hierarchy, (*source.hierarchy.classes, *contents), pattern)
    inside, census = contents.get(path, ModuleContents()), Census.of(source.model)
    own = census.among(inside.nodes)
    facts = Facts(source.model)
    if any(value.type is None or value.shape is None for value in (*inside.inputs, *inside.outputs)):
        facts.infer()
    return ModuleInspection(
        model=source.name,
        path=path,
        tag=source.hierarchy.tag(path, torch_nn=True),
        kind=source.hierarchy.classes.get(path),
        calls=_calls(path, inside.nodes),
        nodes=len(own.nodes) - len(own.constants),
        constants=len(own.constants),
        parameters=own.parameters,
        ops=ops(own.nodes),
        inputs=tuple(_port(value, facts) for value in inside.inputs),
        outputs=tuple(_port(value, facts) for value in inside.outputs),
        weights=weights(own.initializers),
        shared_nodes=tuple(
            label(node)
            for node in census.nodes
            if len({is_within(module_of(origin), path) for origin in origins(node)}) > 1  # inside and outside
        ),
        modules=tuple(module for module in modules(census, source.hierarchy) if is_within(module.path, path)),
        coverage=coverage(own.nodes),
    )


def _calls(path: str, nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    """Return the paths of the calls of a module if nodes of more than one call exist, otherwise none."""
    depth = path.count(".") + 1
    places = dict.fromkeys(".".join(owner(node).split(".")[:depth]) for node in nodes) if path else {}
    calls = tuple(place for place in places if module_of(place) == path)
    return calls if len(calls) > 1 else ()


def _port(value: ir.Value, facts: Facts) -> Port:
    """Return an input or output of a module, with type and shape from the file or from shape inference."""
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
    """Describe a model or one module of it; the weights are not read.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        module: Describe only this module: a tag, an instance path, or a glob over either that matches one module.

    Raises:
        UsageError: If no module or more than one matches.
    """
    model = tagged(source)
    return _inspect_model(model) if module is None else _inspect_module(model, module)


def _inspect_model(source: Tagged) -> Inspection:
    model, path = source.model, source.path
    census = Census.of(model)
    inputs = tuple(port(value, value.is_initializer()) for value in model.graph.inputs)
    outputs = tuple(port(value) for value in model.graph.outputs)
    calls = Counter(node.op_identifier() for node in census.nodes)
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
        functions=tuple(
            FunctionUse(function.domain, function.name, len(function), calls[identifier])
            for identifier, function in model.functions.items()
        ),
        bodies=tuple(
            Body(label(node), node.op_type, attribute, len(graph))
            for node in census.nodes
            for attribute, graph in bodies(node)
        ),
        modules=modules(census, source.hierarchy) if any(map(origins, census.nodes)) else (),
        coverage=coverage(census.nodes),
        root_nodes=root_nodes(census.nodes),
        tied=tied(census.initializers),
        metadata=dict(model.metadata_props),
        evidence=evidence(census.nodes),
    )


def _bytes_on_disk(path: Path, census: Census) -> int:
    """Return the size of the model file and of all external data files."""
    files = {os.path.realpath(path)}
    files |= {os.path.realpath(tensor.file.path) for tensor in census.tensors if isinstance(tensor, FileTensor)}
    return sum(map(os.path.getsize, files))


def _dynamic_dims(ports: Iterable[Port]) -> tuple[DynamicDim, ...]:
    where: dict[str, list[str]] = defaultdict(list)
    for value in ports:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                place = f"{value.name}[{axis}]"
                where[dim or place].append(place)
    return tuple(DynamicDim(name, tuple(places)) for name, places in where.items())
