"""One module of a Run before and after, as drawings: found by its path, marked where a node is new or gone."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import UsageError
from sardonyx.records.run import Run, Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.plots.drawing import Kind, Label, drawing
from sardonyx.reporting.plots.module_contents import Inside, Part, insides

Nodes = frozenset[tuple[str, str]]


def nodes_of(wiring: Wiring) -> Nodes:
    """What makes a node the same before and after: its name and its operator."""
    return frozenset(zip(wiring.names, wiring.ops, strict=True))


def kind_of(part: Part, others: Nodes, unknown: Kind) -> Kind:
    """What is drawn of a part: of the kind `unknown` where it is a node that the other graph does not have."""
    return unknown if part.kind == "op" and (part.name, part.text) not in others else part.kind


def labelled(inside: Inside, others: Nodes, unknown: Kind) -> list[Label]:
    """A label for every part of a module."""
    return [Label(part.text, kind_of(part, others, unknown), part.name or part.path or "") for part in inside.parts]


def module_drawing(inside: Inside, others: Nodes, unknown: Kind) -> dict[str, Any]:
    """One side of a module, laid out."""
    return drawing(labelled(inside, others, unknown), inside.edges)


def module_sides(run: Run, path: str) -> tuple[tuple[Inside | None, Nodes], tuple[Inside | None, Nodes]]:
    """A module before and after, each with the nodes of the other graph; None where nothing of it is there."""
    if run.wiring_before is None or run.wiring_after is None:
        raise UsageError("the run keeps no graph", hint="optimize the model again, with this version")
    before, after = insides(run.wiring_before), insides(run.wiring_after)
    if path not in before and path not in after:
        hint = "sardonyx inspect lists the modules; the model itself is the empty path"
        raise UsageError(f"no module is called {formatting.name(path)!r}", hint=hint)
    return (before.get(path), nodes_of(run.wiring_after)), (after.get(path), nodes_of(run.wiring_before))


def top_module(run: Run) -> str:
    """The model itself, or the first module that has more inside than one other."""
    if run.wiring_before is None:
        return ""
    found = insides(run.wiring_before)
    path = ""
    while path in found:
        parts = [part for part in found[path].parts if part.kind != "port"]
        if len(parts) != 1 or parts[0].kind != "module" or parts[0].path is None:
            return path
        path = parts[0].path
    return ""
