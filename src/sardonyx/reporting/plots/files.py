"""All pictures of one model as files: the map, the graph of its top module, memory, latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.records.run import Run
from sardonyx.reporting import formatting
from sardonyx.reporting.page.module_map import MEASURES, map_picture
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.boxplot import boxplot
from sardonyx.reporting.plots.drawing import Kind, graph_picture
from sardonyx.reporting.plots.module_contents import Inside
from sardonyx.reporting.plots.module_drawings import Nodes, module_drawing, module_sides, top_module
from sardonyx.reporting.plots.timeline import timeline
from sardonyx.reporting.run_bundle import RunBundle

MOST = 400  # boxes of one drawing
_FILES = {"nodes": "map-nodes.svg", "bytes": "map-bytes.svg", "ms": "map-time.svg"}


def pictures(dossier: RunBundle) -> dict[str, str]:
    """Texts of SVG files by name; what was not measured has none."""
    found: dict[str, svg.Picture | None] = {_FILES[measure.id]: map_picture(dossier, measure) for measure in MEASURES}
    if dossier.run.wiring_before is not None and dossier.run.wiring_after is not None:
        found["module-graph.svg"] = module_picture(dossier.run, top_module(dossier.run), dossier.label)
    if dossier.forms is not None:
        lines = {label: form.memory.timeline for label, form in zip(("before", "after"), dossier.forms, strict=True)}
        found["memory.svg"] = timeline(lines, dossier.label)
    if dossier.bench is not None:
        found["latency.svg"] = boxplot(dossier.bench)
    return {name: picture.file() for name, picture in found.items() if picture is not None}


def module_svg(run: Run, path: str) -> str:
    """A module of a Run from inside, before beside after, as the text of an SVG file."""
    return module_picture(run, path).file()


def module_picture(run: Run, path: str, label: str = "(model)") -> svg.Picture:
    """The same, for a file or for a page; `label` is what the model itself is called."""
    (before, nodes_after), (after, nodes_before) = module_sides(run, path)
    sides: Mapping[str, Mapping[str, Any] | str] = {
        "Before": _side(before, nodes_after, "gone"),
        "After": _side(after, nodes_before, "made"),
    }
    about = "▸ module below and its nodes; round: what it reads from and hands to; − dashed: removed; + bold: new"
    return graph_picture(sides, path or label, about)


def _side(inside: Inside | None, others: Nodes, unknown: Kind) -> Mapping[str, Any] | str:
    if inside is None:
        return "Nothing of it is left here."
    if len(inside.parts) > MOST:
        return f"{formatting.count(len(inside.parts))} boxes: too many to be read as one drawing."
    return module_drawing(inside, others, unknown)
