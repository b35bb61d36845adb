"""One module of a Run before and after, as drawings in which new and removed nodes are marked."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import UsageError
from sardonyx.records.run import Run, Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.plots.drawing import Kind, Label, drawing
from sardonyx.reporting.plots.module_contents import ModuleContents, Part, module_contents

Nodes = frozenset[tuple[str, str]]
Side = tuple[ModuleContents | None, Nodes]  # a module, and the nodes of the other graph


def nodes_of(wiring: Wiring) -> Nodes:
    """Return the identity of every node before and after: its name and its operator."""
    return frozenset(zip(wiring.names, wiring.ops, strict=True))


def kind_of(part: Part, others: Nodes, unknown: Kind) -> Kind:
    """Return the kind of a part, `unknown` for a node that the other graph does not have."""
    return unknown if part.kind == "op" and (part.name, part.text) not in others else part.kind


def labelled(contents: ModuleContents, others: Nodes, unknown: Kind) -> list[Label]:
    """Return a label for every part of a module."""
    return [Label(part.text, kind_of(part, others, unknown), part.name or part.path or "") for part in contents.parts]


def module_drawing(contents: ModuleContents, others: Nodes, unknown: Kind) -> dict[str, Any]:
    """Return the layout of one side of a module."""
    return drawing(labelled(contents, others, unknown), contents.edges)


def module_sides(run: Run, path: str) -> tuple[Side, Side]:
    """Return a module before and after, None if it does not exist there, each with the nodes of the other graph."""
    if run.wiring_before is None or run.wiring_after is None:
        raise UsageError("the run has no graph", hint="optimize the model again, with this version")
    before, after = module_contents(run.wiring_before), module_contents(run.wiring_after)
    if path not in before and path not in after:
        hint = "sardonyx inspect lists the modules; the model itself is the empty path"
        raise UsageError(f"no module is called {formatting.name(path)!r}", hint=hint)
    return (before.get(path), nodes_of(run.wiring_after)), (after.get(path), nodes_of(run.wiring_before))


def top_module(run: Run) -> str:
    """Return the first module from the top that contains more than one other module."""
    if run.wiring_before is None:
        return ""
    contents = module_contents(run.wiring_before)
    path = ""
    while path in contents:
        parts = [part for part in contents[path].parts if part.kind != "port"]
        if len(parts) != 1 or parts[0].kind != "module" or parts[0].path is None:
            return path
        path = parts[0].path
    return ""
