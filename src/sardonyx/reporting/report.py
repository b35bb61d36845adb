"""`sardonyx.report`: a run as an HTML page, as Markdown for a pull request, or as pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast, get_args

from msgspec import Struct

from sardonyx.common.atomic_write import check_free, explained, write_whole
from sardonyx.errors import OutputError, UsageError
from sardonyx.records.comparison import Location
from sardonyx.records.quantization import Quantization
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import View
from sardonyx.reporting.history import histories, measured, recent
from sardonyx.reporting.page import render_locations, render_page
from sardonyx.reporting.page.modules import MEASURES, map_picture
from sardonyx.reporting.page.overview import compared
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.charts import boxplot, substitution_plot, timeline, trend
from sardonyx.reporting.pull_request import pull_request, pull_request_of_two
from sardonyx.reporting.quantization import front, quantization_document, sensitivity
from sardonyx.reporting.run_bundle import (
    HOW,
    QuantizationBundle,
    RunBundle,
    Source,
    locations_without_run,
    quantization_bundles,
    record_groups,
    run_bundles,
)
from sardonyx.reporting.verdict import location_document
from sardonyx.reporting.writers import markdown

Format = Literal["html", "markdown", "svg"]
_SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


class Report(Struct, frozen=True):
    """The rendered files, whether or not they were written."""

    format: Format
    files: dict[str, str]  # text by name; several for pictures
    bundles: tuple[RunBundle, ...]  # the models that are shown
    locations: Mapping[str, Location] = {}  # records of `locate` without a run, by label
    quantizations: tuple[QuantizationBundle, ...] = ()  # of models without a run

    @property
    def text(self) -> str:
        """The text, if there is one file."""
        return "".join(self.files.values())


def report(
    sources: Source | Sequence[Source],
    output: str | Path | None = None,
    *,
    format: Format | None = None,
    compare: bool = False,
    force: bool = False,
) -> Report:
    """Render one or more runs; nothing is computed, and every number comes from a record.

    Args:
        sources: a run, or a file or a folder that holds one; other records of the same files (of `bench`, `profile`,
            `analyze`, `export`, `quantize`) may be given with it. Several runs get an overview. A quantization may also
            be given alone.
        output: the file to write, or the folder for pictures; nothing is written if None.
        format: "html", "markdown" or "svg"; taken from the name of the output if None.
        compare: show what changed from the first run to the second.
        force: overwrite what exists.

    Raises:
        UsageError: there is no run and no quantization among the sources, or the options contradict each other.
        OutputError: the output exists or cannot be written.
    """
    form = format_of(output, format)
    if output is not None and form != "svg":
        check_free(os.fspath(output), force=force)
    elif output is not None and Path(output).exists() and not Path(output).is_dir():
        raise OutputError(f"{output} is a file", hint="pictures go into a folder: name one")
    several = isinstance(sources, Sequence) and not isinstance(sources, (str, bytes))
    if not (listed := cast("Sequence[Source]", sources if several else [sources])):
        raise UsageError("there is nothing to report", hint=HOW)
    groups = record_groups(listed)
    locations = {} if compare else locations_without_run(groups)
    if locations:
        result = Report(form, _located(locations, form), (), locations)
    else:
        bundles, quantizations = run_bundles(groups), quantization_bundles(groups)
        if compare and len(bundles) != 2:
            raise UsageError(f"two runs can be compared, not {len(bundles)}", hint="name the records of two runs")
        files = _compared(bundles[0], bundles[1], form) if compare else _rendered(bundles, quantizations, form)
        result = Report(form, files, tuple(bundles), quantizations=tuple(quantizations))
    if output is not None:
        _write(result, Path(output), force=force)
    return result


def _located(locations: Mapping[str, Location], form: Format) -> dict[str, str]:
    match form:
        case "html":
            return {"report.html": render_locations(locations)}
        case "markdown":
            documents = (location_document(location, View(verbose=True)) for location in locations.values())
            return {"report.md": "\n".join(map(markdown.write, documents))}
        case "svg":
            plots = {label: substitution_plot(location).file() for label, location in locations.items()}
            return {f"{_plain(label)}.svg": text for label, text in plots.items()}


def _compared(first: RunBundle, second: RunBundle, form: Format) -> dict[str, str]:
    match form:
        case "html":
            title = f"{first.label} → {second.label}"
            return {"report.html": render_page((first, second), title=title, first=compared(first, second))}
        case "markdown":
            return {"report.md": pull_request_of_two(first, second)}
        case "svg":
            raise UsageError("a comparison has no pictures of its own", hint="compare as html or as markdown")


def _rendered(
    bundles: Sequence[RunBundle], quantizations: Sequence[QuantizationBundle], form: Format
) -> dict[str, str]:
    match form:
        case "html":
            return {"report.html": render_page(bundles, quantizations, title=_title(bundles, quantizations))}
        case "markdown":
            texts = [pull_request(bundles)] if bundles else []
            made = [each.quantization for each in (*bundles, *quantizations) if each.quantization is not None]
            texts += [markdown.write(quantization_document(each, View())) for each in made]
            return {"report.md": "\n".join(texts)}
        case "svg":
            return _drawn(bundles, quantizations)


def _title(bundles: Sequence[RunBundle], quantizations: Sequence[QuantizationBundle]) -> str:
    models = histories(bundles)
    count = len(models) + len(quantizations)
    if count > 1:
        return f"{count} models"
    if not models:
        return quantizations[0].label
    runs = fmt.plural(len(bundles), "run")
    return f"{models[0].model}, {runs}" if len(bundles) > 1 else bundles[0].label


def _drawn(bundles: Sequence[RunBundle], quantizations: Sequence[QuantizationBundle]) -> dict[str, str]:
    """Return the pictures of one model, or those of several, each in a folder named after it, and of histories."""
    shown = [(bundle.label, pictures(bundle)) for bundle in recent(bundles)]
    shown += [(each.label, _written(_quantization_pictures(each.quantization, each.label))) for each in quantizations]
    if len(shown) == 1:
        return shown[0][1]
    drawn = {
        f"{number}-{_plain(label)}/{name}": text
        for number, (label, files) in enumerate(shown, 1)
        for name, text in files.items()
    }
    for number, history in enumerate(histories(bundles), 1):
        for tracked in measured(history) if len(history.runs) > 1 else ():
            name = f"history-{number}-{_plain(history.model)}/{tracked.measure.name}.svg"
            drawn[name] = trend(history, tracked).file()
    return drawn


def _plain(label: str) -> str:
    """Return a label as a safe name of a folder: labels come from files, and must not lead out of it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", label)[:60].strip("-") or "model"


def format_of(output: str | Path | None, name: str | None) -> Format:
    """Return the format with the given name, otherwise that of the output's suffix, otherwise HTML.

    Raises:
        UsageError: the format or the suffix is unknown.
    """
    if name is not None:
        if name not in get_args(Format):
            raise UsageError(f"there is no format {name!r}", hint=f"one of {', '.join(get_args(Format))}")
        return cast("Format", name)
    if output is None:
        return "html"
    form = _SUFFIXES.get(Path(output).suffix.lower())
    if form is None:
        hint = 'name it .html or .md, or pass `format="svg"` for a folder of pictures'
        raise UsageError(f"the format of {output} is unknown", hint=hint)
    return form


def _write(report: Report, output: Path, *, force: bool) -> None:
    """Write each file completely or not at all, and create missing folders."""
    if report.format != "svg":
        write_whole(os.fspath(output), report.text.encode(), force=force)
        return
    taken = next((name for name in report.files if (output / name).exists()), None)
    if taken is not None and not force:
        raise OutputError(f"{output / taken} exists", hint="choose another folder, or overwrite with `force=True`")
    for name, text in report.files.items():
        with explained(str(output)):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(output / name), text.encode(), force=force)


# All pictures of one model as files: the map, memory, latency, the measured models of a quantization.

_FILES = {"nodes": "map-nodes.svg", "bytes": "map-bytes.svg", "ms": "map-time.svg"}


def pictures(bundle: RunBundle) -> dict[str, str]:
    """Return the texts of SVG files by name; quantities that were not measured have none."""
    drawn: dict[str, svg.Picture | None] = {_FILES[measure.id]: map_picture(bundle, measure) for measure in MEASURES}
    if bundle.forms is not None:
        lines = {label: form.memory.timeline for label, form in zip(("before", "after"), bundle.forms, strict=True)}
        drawn["memory.svg"] = timeline(lines, bundle.label)
    if bundle.bench is not None:
        drawn["latency.svg"] = boxplot(bundle.bench)
    if bundle.quantization is not None:
        drawn |= _quantization_pictures(bundle.quantization, bundle.label)
    return _written(drawn)


def _quantization_pictures(quantization: Quantization, label: str) -> dict[str, svg.Picture | None]:
    choice = quantization.choice
    if choice is None:
        return {}
    return {
        "front.svg": front(choice, f"Measured models of {label}"),
        "sensitivity.svg": sensitivity(quantization, choice, f"Loss of each module of {label} alone"),
    }


def _written(drawn: Mapping[str, svg.Picture | None]) -> dict[str, str]:
    return {name: picture.file() for name, picture in drawn.items() if picture is not None}
