"""Look at one module of a model: what is in it and below it, what it takes and gives, what it shares with others."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.graph.attributes import dtype_name
from sardonyx.graph.census import Census, coverage, modules, ops, port, weights
from sardonyx.graph.facts import Facts
from sardonyx.graph.insides import Inside, insides
from sardonyx.graph.origins import origins, owner
from sardonyx.graph.scopes import label
from sardonyx.graph.select import find_module
from sardonyx.graph.shapes import expr
from sardonyx.graph.tagged import Tagged
from sardonyx.inspection import ModuleInspection, Port
from sardonyx.provenance import is_within, lineage, module_of


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
