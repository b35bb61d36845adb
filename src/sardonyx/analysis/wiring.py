"""Which node feeds which, as plain data: what a page draws one module of at a time."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import bodies, is_constant, label, operator
from sardonyx.records.run import Wiring

Places = dict[ir.Node, int]


def wiring(model: ir.Model) -> Wiring:
    """All nodes that compute, in the order they are done, and the edges between them.

    A node inside a body is joined to those outside whose values it reads, and those that make the body's results to the
    node that holds it, which is done when they are. So every edge leads forward. Functions are graphs of their own.
    """
    places: Places = {}
    edges: list[tuple[int, int]] = []
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        _walk(graph, places, edges)
    modules: dict[str, int] = {}
    owners = [modules.setdefault(owner(node), len(modules)) for node in places]
    given = (value for value in model.graph.inputs if not value.is_initializer())
    return Wiring(
        modules=tuple(modules),
        names=tuple(map(label, places)),
        ops=tuple(map(operator, places)),
        owners=tuple(owners),
        edges=tuple(edges),
        inputs={value.name or "": _readers(value, places) for value in given},
        outputs={value.name or "": next(_makers([value], places), -1) for value in model.graph.outputs},
    )


def _walk(graph: ir.Graph, places: Places, edges: list[tuple[int, int]]) -> None:
    for node in graph:
        if is_constant(node):
            continue
        read = list(node.inputs)
        for _, body in bodies(node):
            _walk(body, places, edges)
            read.extend(body.outputs)  # no list, so that += does not do
        place = places[node] = len(places)
        edges += [(maker, place) for maker in dict.fromkeys(_makers(read, places))]


def _makers(values: list[ir.Value | None], places: Places) -> Iterator[int]:
    for value in values:
        maker = value.producer() if value is not None else None
        if maker in places:
            yield places[maker]


def _readers(value: ir.Value, places: Places) -> tuple[int, ...]:
    return tuple(sorted({places[user] for user in value.consumers() if user in places}))
