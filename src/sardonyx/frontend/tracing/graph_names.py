"""Gives a graph's inputs and outputs the names of the call, and renames other values that have such a name."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.frontend.tracing.adapter import Call
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import scopes
from sardonyx.provenance import UNKNOWN
from sardonyx.records.run import How


def name_interface(model: ir.Model, call: Call) -> None:
    """Name inputs and outputs; an output that is also an input, an initializer or another output is copied."""
    inputs, outputs = model.graph.inputs, model.graph.outputs
    for index, name in enumerate(call.outputs):
        value = outputs[index]
        if value in (*inputs, *list(outputs)[:index]) or value.is_initializer():
            copy = ir.node("Identity", [value], name=f"{name}_copy")
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            set_origins(copy, UNKNOWN, How.ROOT)
            model.graph.append(copy)
            outputs[index] = copy.outputs[0]
    named = dict(zip((*inputs, *outputs), (*call.inputs, *call.outputs), strict=True))
    _rename_others(model, named)
    for value, name in named.items():
        value.name = name


def _rename_others(model: ir.Model, named: dict[ir.Value, str]) -> None:
    """Rename the other values that have a name of the interface."""
    reserved = set(named.values())
    taken = {value.name for value in _values(model)} | reserved
    for value in list(_values(model)):
        if value in named or value.name not in reserved:
            continue
        number = 1
        while f"{value.name}_{number}" in taken:
            number += 1
        value.name = f"{value.name}_{number}"
        taken.add(value.name)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for scope in scopes(model):
        yield from scope.graph.initializers.values()
        for node in scope.graph:
            yield from node.outputs
