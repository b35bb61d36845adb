"""Names of values: fresh ones, and unique ones within everything that is visible.

In memory a use points at its value. In a file it is a name, and a body may reuse a name of an enclosing graph for a
value of its own. A use that a rewrite moves from one value to another could then refer to the body's value. Therefore
bodies are renamed before any rewrite. The inputs and outputs of a body are matched by position, so its names are not
part of an interface.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.ir.scopes import bodies, scopes, top_graphs


class Names:
    """Names that no value or node of the model has yet, in an order that depends on the graph alone."""

    def __init__(self, taken: set[str]) -> None:
        """Start with the names in use."""
        self._taken = taken
        self._counts: dict[str, int] = {}

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        """Start with every name in a model, in any graph."""
        taken: set[str] = set()
        for scope in scopes(model):
            taken.update(value.name or "" for value in defined(scope.graph))
            for node in scope.graph:
                taken.add(node.name or "")
                taken.update(value.name or "" for value in node.inputs if value is not None)
        return cls(taken)

    def fresh(self, base: str) -> str:
        """Return `base` if it is free, otherwise `base` with the next free number."""
        name = base
        while name in self._taken:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def defined(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph defines: its inputs, its initializers, the outputs of its nodes."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def rename_shadowing(model: ir.Model, names: Names) -> None:
    """Rename every value of a body that has the name of a value in an enclosing graph."""
    for graph in top_graphs(model):
        if any(True for node in graph for _ in bodies(node)):
            _rename_below(graph, {value.name for value in defined(graph)}, names)


def _rename_below(graph: ir.Graph, visible: set[str | None], names: Names) -> None:
    """Rename in the bodies of a graph; `visible` holds all names of this graph and the enclosing ones."""
    for node in graph:
        for _, body in bodies(node):
            values = list(dict.fromkeys(defined(body)))
            for value in values:
                if value.name and value.name in visible:
                    value.name = names.fresh(value.name)
            own = {value.name for value in values}
            visible |= own
            _rename_below(body, visible, names)
            visible -= own
