"""The names of a graph's inputs and outputs: those of the call, and nothing else in the graph goes by them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.frontend.tracing.adapter import Call
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import scopes
from sardonyx.provenance import UNKNOWN
from sardonyx.records.run import How


def name_interface(model: ir.Model, call: Call) -> None:
    """Name inputs and outputs; what is both, or an output twice, gets a node in between."""
    inputs, outputs = model.graph.inputs, model.graph.outputs
    for place, name in enumerate(call.outputs):
        value = outputs[place]
        if value in (*inputs, *list(outputs)[:place]) or value.is_initializer():
            copy = ir.node("Identity", [value], name=f"{name}_copy")
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            set_origins(copy, UNKNOWN, How.ROOT)
            model.graph.append(copy)
            outputs[place] = copy.outputs[0]
    named = dict(zip((*inputs, *outputs), (*call.inputs, *call.outputs), strict=True))
    _make_room(model, named)
    for value, name in named.items():
        value.name = name


def _make_room(model: ir.Model, named: dict[ir.Value, str]) -> None:
    """Rename what is not of the interface and goes by a name of it."""
    wanted = set(named.values())
    taken = {value.name for value in _values(model)} | wanted
    for value in list(_values(model)):
        if value in named or value.name not in wanted:
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
