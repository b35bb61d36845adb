"""Names of values: fresh ones, and one meaning for each wherever it can be seen.

In memory a use points at its value; in a file it is a name, and a body may give a name of the graphs around it to a
value of its own. A use that a rewrite moves from one value to another could then mean the body's own. So bodies are
renamed apart before any rewrite. The names in a body are no interface: its inputs and outputs go by position.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.ir.scopes import bodies, scopes


class Names:
    """Names that no value or node of the model has yet; given in an order that depends on the graph alone."""

    def __init__(self, taken: set[str]) -> None:
        """Start from the names in use."""
        self._taken = taken
        self._counts: dict[str, int] = {}

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        """Start from every name in a model, in whatever graph."""
        taken: set[str] = set()
        for scope in scopes(model):
            taken.update(value.name or "" for value in defined(scope.graph))
            for node in scope.graph:
                taken.add(node.name or "")
                taken.update(value.name or "" for value in node.inputs if value is not None)
        return cls(taken)

    def fresh(self, base: str) -> str:
        """`base` where free, else `base` with the next free number."""
        name = base
        while name in self._taken:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def defined(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values a graph gives their names: its inputs, its initializers, what its nodes make."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def rename_shadowing(model: ir.Model, names: Names) -> None:
    """Give every value of a body that is named like one of a graph around it a name of its own."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if any(True for node in graph for _ in bodies(node)):
            _rename_below(graph, {value.name for value in defined(graph)}, names)


def _rename_below(graph: ir.Graph, visible: set[str | None], names: Names) -> None:
    """Rename in the bodies of a graph; `visible` holds all names of this graph and of those around it."""
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
