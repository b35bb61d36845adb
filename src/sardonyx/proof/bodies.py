"""Which bodies of If, Loop and Scan the trials have entered.

Every body of a copy of the model gets a node that computes nothing and that only this body runs; the runtime's profile
tells which of them it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.graph.scopes import bodies, label

_MARK = "sardonyx.body."
_BRANCHES = {"then_branch": "then branch", "else_branch": "else branch"}


class Bodies:
    """The bodies of one model, in the main graph and in functions.

    Args:
        model: Not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._names: dict[str, str] = {}  # what a body is called, by its mark
        self.marked: ir.Model | None = None  # a copy to be profiled; None where there are no bodies
        graphs = (model.graph, *(function.graph for function in model.functions.values()))
        if any(True for graph in graphs for _ in _bodies(graph)):
            self.marked = model.clone()
            self._mark(self.marked)

    def never_entered(self, executed: frozenset[str] | None) -> list[str]:
        """The bodies that none of the executed nodes was in; none where nothing is known."""
        if executed is None:
            return []
        seen = {name[name.index(_MARK) :] for name in executed if _MARK in name}
        return [text for mark, text in self._names.items() if mark not in seen]

    def _mark(self, model: ir.Model) -> None:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            for node, name, body in _bodies(graph):
                mark = f"{_MARK}{len(self._names)}"
                self._names[mark] = f"the {_BRANCHES.get(name, 'body')} of {node.op_type} '{label(node)}' never ran"
                one = ir.node("Constant", [], {"value": ir.tensor(np.zeros(1, np.float32))}, name=f"{mark}.one")
                one.outputs[0].name = f"{mark}.one"
                marker = ir.node("Identity", [one.outputs[0]], name=mark)
                marker.outputs[0].name = mark
                body.extend([one, marker])


def _bodies(graph: ir.Graph) -> Iterator[tuple[ir.Node, str, ir.Graph]]:
    """Every body below a graph, with the node that holds it and the name of the attribute."""
    for node in graph:
        for name, body in bodies(node):
            yield node, name, body
            yield from _bodies(body)
