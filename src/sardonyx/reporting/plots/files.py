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
from sardonyx.reporting.plots.module_contents import ModuleContents
from sardonyx.reporting.plots.module_drawings import Nodes, module_drawing, module_sides, top_module
from sardonyx.reporting.plots.timeline import timeline
from sardonyx.reporting.run_bundle import RunBundle

MOST = 400  # boxes of one drawing
_FILES = {"nodes": "map-nodes.svg", "bytes": "map-bytes.svg", "ms": "map-time.svg"}


def pictures(bundle: RunBundle) -> dict[str, str]:
    """Return the texts of SVG files by name; quantities that were not measured have none."""
    drawn: dict[str, svg.Picture | None] = {_FILES[measure.id]: map_picture(bundle, measure) for measure in MEASURES}
    if bundle.run.wiring_before is not None and bundle.run.wiring_after is not None:
        drawn["module-graph.svg"] = module_picture(bundle.run, top_module(bundle.run), bundle.label)
    if bundle.forms is not None:
        lines = {label: form.memory.timeline for label, form in zip(("before", "after"), bundle.forms, strict=True)}
        drawn["memory.svg"] = timeline(lines, bundle.label)
    if bundle.bench is not None:
        drawn["latency.svg"] = boxplot(bundle.bench)
    return {name: picture.file() for name, picture in drawn.items() if picture is not None}


def module_svg(run: Run, path: str) -> str:
    """Return the contents of a module before and after, side by side, as the text of an SVG file."""
    return module_picture(run, path).file()


def module_picture(run: Run, path: str, label: str = "(model)") -> svg.Picture:
    """Return the same as a picture for a file or a page; `label` is the name of the model itself."""
    (before, nodes_after), (after, nodes_before) = module_sides(run, path)
    sides: Mapping[str, Mapping[str, Any] | str] = {
        "Before": _side(before, nodes_after, "gone"),
        "After": _side(after, nodes_before, "made"),
    }
    about = "▸ module below and its nodes; round: inputs and outputs; − dashed: removed; + bold: new"
    return graph_picture(sides, path or label, about)


def _side(contents: ModuleContents | None, others: Nodes, unknown: Kind) -> Mapping[str, Any] | str:
    if contents is None:
        return "This module does not exist here."
    if len(contents.parts) > MOST:
        return f"{formatting.count(len(contents.parts))} boxes: too many for one drawing."
    return module_drawing(contents, others, unknown)
