"""An Adoption as text: how far a file's own words about its modules went."""

from __future__ import annotations

from sardonyx.records.inspection import Adoption
from sardonyx.reporting import formatting
from sardonyx.reporting.formatting import Style
from sardonyx.reporting.inspection import coverage_line

_SHOWN = 10  # nodes without a module that are listed


def render_adoption(found: Adoption, style: Style) -> str:
    """The whole answer of `adopt`; its last line is the sentence."""
    told = (f"{formatting.count(number)} from {kind}" for kind, number in found.evidence.items())
    lines = [
        style.strong(formatting.visible(found.source)),
        f"  nodes by module  {coverage_line(found.coverage)}",
        f"  found            {', '.join(told) or 'nothing'}",
        f"  modules          {formatting.count(found.modules)} own nodes",
    ]
    shown = found.root_nodes[:_SHOWN]
    lines += [
        f"  {formatting.name(node.op_type)} {formatting.name(node.name)}: {formatting.one_line(node.reason)}"
        for node in shown
    ]
    if len(found.root_nodes) > len(shown):
        lines.append(f"  and {formatting.count(len(found.root_nodes) - len(shown))} more; --json lists them all")
    return "\n".join(lines) + "\n\n" + adoption_sentence(found, style) + "\n"


def adoption_sentence(found: Adoption, style: Style) -> str:
    """What was found, in one line."""
    known = found.coverage.direct + found.coverage.inherited
    said = f"{formatting.count(known)} of {formatting.plural(found.nodes, 'node')} with a module"
    where = f" → {formatting.visible(found.output)}" if found.output is not None else ", nothing written"
    return style.strong(said + where)
