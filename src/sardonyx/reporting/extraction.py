"""An Extraction as text: what was cut, its boundary, and what it was held against."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.records.extraction import BoundaryValue, Extraction
from sardonyx.reporting import formatting
from sardonyx.reporting.formatting import Style
from sardonyx.reporting.name_groups import grouped
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Line, table, text_column
from sardonyx.reporting.verdict import proof, verdict_lines

_SHOWN = 8  # straddling nodes, without -v


def render_extraction(found: Extraction, view: View | None = None) -> str:
    """The whole answer of `extract`; its last line is the sentence."""
    view = view or View()
    blocks = [
        _heading(found, view),
        _boundary(found, view),
        _titled("Against the live module", verdict_lines(found.live, view.style, verbose=view.verbose), view),
        _titled("Against the whole model", verdict_lines(found.verdict, view.style, verbose=view.verbose), view),
        [extraction_sentence(found, view.style)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def extraction_sentence(found: Extraction, style: Style | None = None) -> str:
    """What was cut out and whether it holds, in one line."""
    style = style or Style()
    clauses = [
        f"{_module(found.path)}: {formatting.plural(found.counts.nodes, 'node')}",
        formatting.plural(len(found.inputs), "input"),
        formatting.plural(len(found.outputs), "output"),
        formatting.size(found.counts.bytes),
    ]
    if found.path != found.asked and found.straddling:
        clauses.append(f"wider than {_module(found.asked)}")
    against = "the live module" if found.live is not None else "the whole model"
    clauses.append(proof(found.live or found.verdict) + (f" against {against}" if found.verdict is not None else ""))
    where = "" if found.result.path is None else f" → {formatting.visible(found.result.path)}"
    return style.strong(", ".join(clauses) + where)


def _module(path: str) -> str:
    return formatting.name(path) or "the model"


def _heading(found: Extraction, view: View) -> list[str]:
    lines = [view.style.strong(_module(found.path)) + f"  {formatting.name(found.tag, 100)}"]
    if found.straddling:
        names = found.straddling if view.verbose else found.straddling[:_SHOWN]
        more = f" and {len(found.straddling) - len(names)} more" if len(names) < len(found.straddling) else ""
        lines.append(
            f"  wider than {_module(found.asked)}, because these nodes also do the work of other modules: "
            + ", ".join(map(formatting.name, names))
            + more
        )
    if found.dropped:
        lines.append(f"  not computed by this graph: {', '.join(map(formatting.name, found.dropped))}")
    return lines + [f"  note: {formatting.one_line(note)}" for note in found.notes]


def _boundary(found: Extraction, view: View) -> list[str]:
    headings = ("", "name", "type", "shape", "made by", *(("live module's",) if found.live is not None else ()))
    lines = _lines("input", found.inputs, found) + _lines("output", found.outputs, found)
    return [view.style.strong("Boundary"), *table([text_column(each) for each in headings], lines, view.style)]


def _lines(kind: str, values: Sequence[BoundaryValue], found: Extraction) -> list[Line]:
    def cells(value: BoundaryValue) -> tuple[str, ...]:
        return (
            formatting.name(value.type),
            _shape(value),
            "model input" if value.module is None else _module(value.module),
            *((formatting.name(value.live or "·"),) if found.live is not None else ()),
        )

    groups = grouped(values, lambda value: value.name, cells)
    return [Line((kind, label, *cells(first))) for label, (first, *_) in groups]


def _shape(value: BoundaryValue) -> str:
    if value.shape is None:
        return "any rank"
    return f"[{', '.join('?' if dim is None else formatting.name(str(dim)) for dim in value.shape)}]"


def _titled(title: str, lines: list[str], view: View) -> list[str]:
    """The block of a verdict under its own title."""
    return [view.style.strong(title), *lines[1:]] if lines else []
