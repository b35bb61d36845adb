"""What `sardonyx decompose` answers, as text."""

from __future__ import annotations

from sardonyx.records.analysis import Decomposed
from sardonyx.reporting import formatting
from sardonyx.reporting.analysis import parts
from sardonyx.reporting.inspection import module_name, titled
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Line, table, text_column

SHOWN = 12


def render_decomposed(found: Decomposed, view: View | None = None) -> str:
    """The whole answer; its last line is the sentence."""
    view = view or View()
    shown = found.attentions if view.verbose else found.attentions[:SHOWN]
    columns = (text_column("attention"), text_column("written as"), text_column("made of"))
    lines = [Line((module_name(each.module), formatting.name(each.written_as), parts(each))) for each in shown]
    more = len(found.attentions) - len(shown)
    blocks = [
        titled(formatting.visible(found.source), {"graph nodes": _nodes(found)}, view),
        table(columns, lines, view.style) if lines else [],
        [view.style.faint(f"  and {more} more; -v lists all")] if more else [],
        [f"  {formatting.one_line(note)}" for note in found.notes],
        [view.style.strong(decomposed_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def decomposed_sentence(found: Decomposed) -> str:
    """What happened, in one line."""
    where = f" → {formatting.visible(found.output)}" if found.output else ""
    return f"{formatting.plural(len(found.attentions), 'attention')} spelled out, {_nodes(found)} nodes{where}"


def _nodes(found: Decomposed) -> str:
    after = formatting.count(found.nodes)
    return after if found.nodes_before is None else f"{formatting.count(found.nodes_before)} → {after}"
