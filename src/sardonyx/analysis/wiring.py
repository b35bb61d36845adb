"""The nodes and edges of a graph as plain data, from which the report draws one module at a time."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import bodies, is_constant, label, operator, top_graphs
from sardonyx.records.run import Wiring

Places = dict[ir.Node, int]


def wiring(model: ir.Model) -> Wiring:
    """Return all nodes other than constants in execution order, and the edges between them.

    A node inside a body has edges from the nodes outside whose values it reads. The producers of a body's outputs have
    edges to the node that owns the body, which comes after them, so every edge leads forward. The graphs of functions
    follow that of the model.
    """
    places: Places = {}
    edges: list[tuple[int, int]] = []
    for graph in top_graphs(model):
        _walk(graph, places, edges)
    modules: dict[str, int] = {}
    owners = [modules.setdefault(owner(node), len(modules)) for node in places]
    inputs = (value for value in model.graph.inputs if not value.is_initializer())
    return Wiring(
        modules=tuple(modules),
        names=tuple(map(label, places)),
        ops=tuple(map(operator, places)),
        owners=tuple(owners),
        edges=tuple(edges),
        inputs={value.name or "": _readers(value, places) for value in inputs},
        outputs={value.name or "": next(_producers([value], places), -1) for value in model.graph.outputs},
    )


def _walk(graph: ir.Graph, places: Places, edges: list[tuple[int, int]]) -> None:
    for node in graph:
        if is_constant(node):
            continue
        operands = list(node.inputs)
        for _, body in bodies(node):
            _walk(body, places, edges)
            operands.extend(body.outputs)
        place = places[node] = len(places)
        edges += [(producer, place) for producer in dict.fromkeys(_producers(operands, places))]


def _producers(values: list[ir.Value | None], places: Places) -> Iterator[int]:
    for value in values:
        producer = value.producer() if value is not None else None
        if producer in places:
            yield places[producer]


def _readers(value: ir.Value, places: Places) -> tuple[int, ...]:
    return tuple(sorted({places[user] for user in value.consumers() if user in places}))
