"""An Analysis as Markdown for a page and as CSV for a spreadsheet; the numbers are the record's, unrounded in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from sardonyx.records.analysis import Analysis, ModuleCost
from sardonyx.reporting import formatting
from sardonyx.reporting.analysis import FIGURES, analysis_sentence, headings, rows

_MODULE_FIELDS = ModuleCost.__struct_fields__
MODEL, MODULE = "model", "module"


def analysis_markdown(found: Analysis) -> str:
    """One page: the forms side by side, regions, what is alive at the peak, formulas and notes."""
    title = " and ".join(source.label for source in found.sources)
    blocks = [
        f"# {_escaped(title)}",
        analysis_sentence(found) + ".",
        _table(["", *headings(found.forms)], [[row.figure.label.strip(), *row.cells()] for row in rows(found)]),
        *_regions(found),
        *_peaks(found),
        *_formulas(found),
        *_remarks(found),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def analysis_csv(found: Analysis) -> str:
    """One line for each form as a whole, and one for each module of it; every number in full."""
    stream = io.StringIO()
    keys = [figure.key for figure in FIGURES]
    own = [name for name in _MODULE_FIELDS if name not in ("path", "kind")]
    extra = [name for name in own if name not in keys]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["form", "scope", "module", "kind", *keys, *extra])
    for form in found.forms:
        figures = form.figures()
        writer.writerow([form.name, MODEL, "", "", *(figures[key] for key in keys), *("" for _ in extra)])
        for module in form.modules:
            numbers = {name: getattr(module, name) for name in own}
            cells = [numbers.get(key, "") for key in (*keys, *extra)]
            writer.writerow([form.name, MODULE, module.path, module.kind, *cells])
    return stream.getvalue()


def _regions(found: Analysis) -> list[str]:
    lines = [
        [
            form.name,
            each.rule,
            formatting.count(each.regions),
            formatting.count(each.operations),
            formatting.size(each.kept_out_bytes),
        ]
        for form in found.forms
        for each in form.regions
    ]
    heads = ["form", "rule", "regions", "operations", "kept out of memory"]
    return ["## What fuses", _table(heads, lines)] if lines else []


def _peaks(found: Analysis) -> list[str]:
    lines = [
        [form.name, formatting.size(each.bytes), f"`{each.operation}`", f"`{each.module or '(model)'}`"]
        for form in found.forms
        for each in form.memory.peak.alive
    ]
    return ["## Alive at the peak", _table(["form", "bytes", "made by", "in module"], lines)] if lines else []


def _formulas(found: Analysis) -> list[str]:
    lines = [
        [form.name, f"`{said.macs}`", f"`{said.bytes_moved}`", f"`{said.peak}`"]
        for form in found.forms
        if (said := form.formulas) is not None
    ]
    return ["## For every size", _table(["form", "macs", "bytes moved", "peak bytes"], lines)] if lines else []


def _remarks(found: Analysis) -> list[str]:
    said = [f"{each.name} could not be made: {each.reason}" for each in found.missing]
    said += [*found.notes, *(f"{form.name}: {note}" for form in found.forms for note in form.notes)]
    return ["## Notes", "\n".join(f"- {_escaped(formatting.one_line(text))}" for text in said)] if said else []


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"

    return "\n".join([row(heads), "|" + "---|" * len(heads), *map(row, lines)])


def _escaped(text: str) -> str:
    """Names come from models; and a bar would end a cell."""
    return formatting.visible(text).replace("|", "\\|")
