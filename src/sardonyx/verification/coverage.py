"""What the generated inputs did not cover, in a line for each thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import bodies, label
from sardonyx.runtime import Array
from sardonyx.verification.input_roles import Role, Use
from sardonyx.verification.size_limits import Bounds
from sardonyx.verification.values import hides_whole_row


def size_notes(sizes: Mapping[str, Set[int]], bounds: Mapping[str, Bounds]) -> list[str]:
    """Dims seen at one size only, or never as long as the numbers that the graph holds them against."""
    notes: list[str] = []
    for name, seen in sizes.items():
        if len(seen) < 2:
            notes.append(f"the dim '{name}' was tried at one size only: the reference accepted no other")
        longest, held = max(seen, default=0), bounds.get(name, Bounds())
        if held.limit is not None and longest < held.limit:
            notes.append(
                f"the dim '{name}' was tried up to {longest}; the graph has a table of {held.limit} rows for it"
            )
        beyond = [number for number in held.compared if number >= longest and number < (held.limit or number + 1)]
        if beyond:
            notes.append(f"the dim '{name}' was tried up to {longest}; the graph compares it with {beyond[-1]}")
    return notes


def value_notes(name: str, use: Use, arrays: Sequence[Array]) -> list[str]:
    """Numbers that the graph compares an input with and that no value reached, and masks without hidden rows."""
    if use.role in (Role.MASK, Role.ADDED_MASK):
        covered = any(hides_whole_row(array) for array in arrays) or all(array.ndim == 0 for array in arrays)
        return [] if covered else [f"no row of the mask '{name}' was hidden whole"]
    finite = [array[np.isfinite(array)] for array in arrays if use.thresholds and array.dtype.kind in "fiu"]
    numbers = np.concatenate([array.astype(np.float64).reshape(-1) for array in finite]) if finite else np.zeros(0)
    if not numbers.size:
        return []
    least, most = float(numbers.min()), float(numbers.max())
    beyond = [one.number for one in use.thresholds if one.number > most or one.number < least]
    if not beyond:
        return []
    listed = ", ".join(f"{number:g}" for number in beyond[:3])
    return [f"values up to {most:g} and down to {least:g} were tried for '{name}'; the graph compares it with {listed}"]


# Which bodies of If, Loop and Scan the trials have entered.
#
# Every body of a copy of the model gets a node that computes nothing and that only this body runs; the runtime's
# profile
# tells which of them it has seen.

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
