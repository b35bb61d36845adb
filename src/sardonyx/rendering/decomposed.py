"""What `sardonyx decompose` answers, as text."""

from __future__ import annotations

from sardonyx.analysis_record import Decomposed
from sardonyx.rendering import words
from sardonyx.rendering.analysis import parts
from sardonyx.rendering.model import module_name, titled
from sardonyx.rendering.table import Line, table, text_column
from sardonyx.rendering.view import View

SHOWN = 12


def render_decomposed(found: Decomposed, view: View | None = None) -> str:
    """The whole answer; its last line is the sentence."""
    view = view or View()
    shown = found.attentions if view.verbose else found.attentions[:SHOWN]
    columns = (text_column("attention"), text_column("written as"), text_column("made of"))
    lines = [Line((module_name(each.module), words.name(each.written_as), parts(each))) for each in shown]
    more = len(found.attentions) - len(shown)
    blocks = [
        titled(words.visible(found.source), {"graph nodes": _nodes(found)}, view),
        table(columns, lines, view.style) if lines else [],
        [view.style.faint(f"  and {more} more; -v lists all")] if more else [],
        [f"  {words.one_line(note)}" for note in found.notes],
        [view.style.strong(decomposed_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def decomposed_sentence(found: Decomposed) -> str:
    """What happened, in one line."""
    where = f" → {words.visible(found.output)}" if found.output else ""
    return f"{words.plural(len(found.attentions), 'attention')} spelled out, {_nodes(found)} nodes{where}"


def _nodes(found: Decomposed) -> str:
    after = words.count(found.nodes)
    return after if found.nodes_before is None else f"{words.count(found.nodes_before)} → {after}"
