"""Look at a model without running it: what it is, what it takes and gives, and which module owns what."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import overload

import onnx_ir as ir

from sardonyx.graph.census import Census, coverage, modules, ops, port, root_nodes, tied
from sardonyx.graph.fingerprint import fingerprint
from sardonyx.graph.module_inspector import inspect_module
from sardonyx.graph.scopes import bodies, label
from sardonyx.graph.tagged import Source, Tagged, tagged
from sardonyx.graph.tensors import FileTensor
from sardonyx.inspection import Body, DynamicDim, FunctionUse, Inspection, ModuleInspection, Port


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
