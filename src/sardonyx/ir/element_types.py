"""Element types of all values, also of those that a file does not declare."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import nested_graphs


def element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return the element types of results and initializers, bodies included, as far as they are known."""
    facts = Facts(model)
    graphs = list(nested_graphs(model.graph))
    values = [value for graph in graphs for node in graph for value in node.outputs]
    values += [value for graph in graphs if isinstance(graph, ir.Graph) for value in graph.initializers.values()]
    return {value: kind for value in values if (kind := facts.dtype(value)) is not None}
