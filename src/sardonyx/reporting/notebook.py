"""A record as Python and notebooks show it: `repr` in at most three lines, and HTML with the graph of a run.

The HTML has no scripts of its own; the graph is in a frame, with the scripts of the report page.
"""

from __future__ import annotations

import importlib
from typing import Any

from markupsafe import Markup, escape

from sardonyx.records.base import Record
from sardonyx.records.run import Run, Verdict
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import View, is_empty
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import verification
from sardonyx.reporting.writers import html

MAX_LINE = 160  # characters of a line
_COMMON = ("schema_version", "environment", "options", "status")
_RENDERED = {  # by tag of the record: the module, and the prefix of `…_document` and `…_sentence` in it
    "analysis": "analysis:analysis",
    "bench": "bench:bench",
    "decomposed": "analysis:decomposition",
    "export": "export:export",
    "extraction": "export:extraction",
    "inspection": "inspection:inspection",
    "location": "verdict:location",
    "module": "inspection:module",
    "opportunities": "inspection:opportunities",
    "profile": "profile:profile",
    "quantization": "quantization:quantization",
    "run": "run:run",
    "study": "study:study",
}
_STYLE = """
.sardonyx-record { overflow-x: auto; }
.sardonyx-record table { border-collapse: collapse; margin: .5em 0; }
.sardonyx-record th, .sardonyx-record td { padding: .15em .7em; text-align: left; }
.sardonyx-record .num { text-align: right; font-variant-numeric: tabular-nums; }
.sardonyx-record caption { display: none; }
.sardonyx-record svg { max-width: 100%; height: auto; }
"""


def text(record: Record) -> str:
    """Return what the record says in one line, its files, and where the rest is: at most three lines."""
    lines, drawn = [f"{type(record).__name__}: {_sentence(record)}"], ""
    if isinstance(record, Run):
        seconds, rewrites = record.seconds.get("total"), fmt.plural(len(record.events), "rewrite")
        took = "" if seconds is None else f", {seconds:.1f} s"
        lines.append(f"  {rewrites}, opset {record.result.opsets.get('', '?')}{took}")
        drawn = '; sardonyx.report(…, "report.html") draws it'
    fields = [name for name in record.published().__struct_fields__ if name not in _COMMON]
    lines.append(f"  fields: {', '.join(fields[:6])}, …; .to_json() has all{drawn}")
    return "\n".join(line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…" for line in lines)


def markup(record: Record) -> str:
    """Return the summary as HTML, with the graph before and after if the record is a run that has one."""
    parts = [Markup("<style>{}</style>").format(Markup(_STYLE))]
    render = _rendering(record, "document")
    if render is None:
        parts.append(Markup("<pre>{}</pre>").format(text(record)))
    else:
        document = render(record, View())
        parts.append(Markup("<p><b>{}</b></p>").format(escape(_sentence(record))))
        parts += [html.write([block]) for block in (*document.head, *document.blocks) if not is_empty(block)]
    if isinstance(record, Run) and record.wiring_before is not None and record.wiring_after is not None:
        parts.append(_graph(record))
    return f'<div class="sardonyx-record">{Markup("").join(parts)}</div>'


def _graph(run: Run) -> Markup:
    """Return the graph section of the report page in a frame, where modules are opened as on the page."""
    from sardonyx.reporting.page import graph_page  # renders the page, so it is loaded when needed

    name = "model" if run.source.path is None else run.source.path
    frame = Markup('<iframe title="Graph" style="width: 100%; height: 52em; border: 0" srcdoc="{}"></iframe>')
    return frame.format(str(graph_page(RunBundle(name, run))))  # as text, which is escaped


def _sentence(record: Record) -> str:
    if isinstance(record, Verdict):
        return verification(record)
    render = _rendering(record, "sentence")
    return record.title if render is None else render(record)


def _rendering(record: Record, kind: str) -> Any:
    """Return the function that renders this kind of record, or None if only its command does."""
    module, _, prefix = _RENDERED.get(record.record_tag(), "").partition(":")
    if not prefix:
        return None
    return getattr(importlib.import_module(f"sardonyx.reporting.{module}"), f"{prefix}_{kind}")
