"""An Adoption as text: how far a file's own words about its modules went."""

from __future__ import annotations

from sardonyx.inspection import Adoption
from sardonyx.rendering import words
from sardonyx.rendering.model import coverage_line
from sardonyx.rendering.words import Style

_SHOWN = 10  # nodes without a module that are listed


def render_adoption(found: Adoption, style: Style) -> str:
    """The whole answer of `adopt`; its last line is the sentence."""
    told = (f"{words.count(number)} from {kind}" for kind, number in found.evidence.items())
    lines = [
        style.strong(words.visible(found.source)),
        f"  nodes by module  {coverage_line(found.coverage)}",
        f"  found            {', '.join(told) or 'nothing'}",
        f"  modules          {words.count(found.modules)} own nodes",
    ]
    shown = found.root_nodes[:_SHOWN]
    lines += [f"  {words.name(node.op_type)} {words.name(node.name)}: {words.one_line(node.reason)}" for node in shown]
    if len(found.root_nodes) > len(shown):
        lines.append(f"  and {words.count(len(found.root_nodes) - len(shown))} more; --json lists them all")
    return "\n".join(lines) + "\n\n" + adoption_sentence(found, style) + "\n"


def adoption_sentence(found: Adoption, style: Style) -> str:
    """What was found, in one line."""
    known = found.coverage.direct + found.coverage.inherited
    said = f"{words.count(known)} of {words.plural(found.nodes, 'node')} with a module"
    where = f" → {words.visible(found.output)}" if found.output is not None else ", nothing written"
    return style.strong(said + where)
