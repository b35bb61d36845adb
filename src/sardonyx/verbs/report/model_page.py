"""The page of any ONNX file: its graph, modules, operators, costs, memory, and what optimizing would rewrite.

Nothing is run, verified or written besides the page. The records that the page shows are computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from sardonyx.common.atomic_write import write_whole
from sardonyx.errors import SardonyxError
from sardonyx.records.progress import Progress
from sardonyx.reporting.page import render_models
from sardonyx.reporting.run_bundle import SIDES, RunBundle

_SNIFFED_BYTES = 64


def is_model(path: Path) -> bool:
    """Return whether a path names a model: by its suffix, otherwise because the file is not JSON."""
    if path.suffix == ".onnx" or not path.is_file():
        return path.suffix == ".onnx"
    with path.open("rb") as file:
        return path.suffix != ".json" and not file.read(_SNIFFED_BYTES).lstrip().startswith(b"{")


def write_page(
    models: Sequence[Path], output: Path, *, force: bool = False, progress: Progress | None = None
) -> list[RunBundle]:
    """Write the page of some models and return what it shows.

    Raises:
        ModelError: a model cannot be read.
        OutputError: the page cannot be written.
    """
    bundles = [describe(model, progress) for model in models]
    write_whole(output, render_models(bundles).encode(), force=force)
    return bundles


def describe(model: Path, progress: Progress | None = None) -> RunBundle:
    """Return the records of a model: an inspection, what optimizing would do, costs and devices of both graphs."""
    from sardonyx import analyze, inspect, optimize
    from sardonyx.ir.device import shown_names
    from sardonyx.verbs.placement.placement import placements

    inspection = inspect(model)
    run = optimize(model, dry_run=True, progress=progress)
    assert run.model is not None, "set by optimize"
    placed = [
        replace(each, model=side)
        for side, graph in zip(SIDES, (model, run.model), strict=True)
        for each in placements(graph, shown_names())
    ]
    label = model.name.removesuffix(".onnx")
    bundle = RunBundle(label, run, inspection=inspection, placements=tuple(placed))
    try:
        analysis = analyze(model, beside=[run.model], formulas=False, progress=progress)
    except SardonyxError as error:
        return replace(bundle, notes=(f"no costs: {error.message}",))
    forms = (replace(form, name=name) for form, name in zip(analysis.forms, SIDES, strict=True))
    return replace(bundle, analysis=replace(analysis, forms=tuple(forms)))
