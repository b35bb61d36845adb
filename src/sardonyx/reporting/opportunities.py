"""Opportunities as text: one table of patterns with why they are left, and what each pass would do."""

from __future__ import annotations

from sardonyx.records.inspection import Opportunities, PatternCount, WhyLeft
from sardonyx.reporting import formatting
from sardonyx.reporting.inspection import module_name
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

REASONS = 2  # shown for a pattern; -v shows all


def render_opportunities(found: Opportunities, view: View | None = None) -> str:
    """The whole answer of `inspect --opportunities`; its last line is the sentence."""
    view = view or View()
    title = formatting.visible(found.path) if found.path else "model in memory"
    blocks = [
        [view.style.strong(title)],
        _patterns(found, view),
        _passes(found, view),
        [view.style.strong(opportunities_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def opportunities_sentence(found: Opportunities) -> str:
    """What would come of the model, and how much of what was looked for is left."""
    before, after = found.before.nodes, found.after.nodes
    open_ = [pattern for pattern in found.patterns if not pattern.made]
    had, left = sum(pattern.before for pattern in open_), sum(pattern.after for pattern in open_)
    counts = formatting.from_to(formatting.count(before), formatting.count(after))
    nodes = f"{counts} nodes ({formatting.percent(before, after)})"
    return (
        f"optimizing for {formatting.name(found.target)} would give {nodes}; "
        f"{formatting.count(left)} of {formatting.plural(had, 'place')} worth a look would be left"
    )


def _patterns(found: Opportunities, view: View) -> list[str]:
    columns = (text_column("pattern"), Column("before"), Column("after"), text_column("why left"))
    shown = [pattern for pattern in found.patterns if view.verbose or pattern.before or pattern.after]
    lines: list[Line] = []
    for pattern in shown:
        first, *others = _why(pattern, view)
        cells = (
            formatting.name(pattern.what),
            formatting.count(pattern.before),
            formatting.count(pattern.after),
            first,
        )
        lines.append(Line(cells, view.style.faint if pattern.made else None))
        lines.extend(Line(("", "", "", other)) for other in others)
    rest = len(found.patterns) - len(shown)
    if rest:
        lines.append(Line((f"({formatting.plural(rest, 'other pattern')} nowhere in it)",), view.style.faint))
    return [view.style.strong("Patterns"), *table(columns, lines, view.style)]


def _why(pattern: PatternCount, view: View) -> list[str]:
    if pattern.made:
        return ["made by fusions"]
    if not pattern.after:
        return ["·"]
    shown = pattern.why if view.verbose else pattern.why[:REASONS]
    rest = sum(each.count for each in pattern.why) - sum(each.count for each in shown)
    return [_reason(each, view) for each in shown] + ([f"{rest}× for other reasons"] if rest else [])


def _reason(why: WhyLeft, view: View) -> str:
    said = "" if why.pass_name is None else f"{formatting.name(why.pass_name)}: "
    place = f"in {_where(why.modules, view)}" if view.verbose else f"e.g. {formatting.name(why.examples[0], 50)}"
    return f"{why.count}× {said}{formatting.one_line(why.reason)} ({place})"


def _passes(found: Opportunities, view: View) -> list[str]:
    columns = (text_column("pass"), Column("would apply"), Column("nodes"), text_column("where"))
    records = [record for record in found.passes if record.rewrites or (view.verbose and record.refusals)]
    lines: list[Line] = []
    for record in records:
        count = formatting.count(record.rewrites) if record.rewrites else "·"
        lines.append(
            Line((formatting.name(record.name), count, formatting.change(record.nodes), _where(record.modules, view)))
        )
        for group in record.refusals if view.verbose else ():
            example = f" (e.g. {formatting.name(group.examples[0])})" if group.examples else ""
            text = f"    refused {group.count}×: {formatting.one_line(group.reason)}{example}"
            lines.append(Line((text,), view.style.faint))
    return [view.style.strong("Passes"), *table(columns, lines, view.style)] if lines else []


def _where(modules: dict[str, int], view: View) -> str:
    """The modules with most rewrites first; all of them where asked for."""
    ordered = sorted(modules, key=lambda path: (-modules[path], path))
    shown = ordered if view.verbose else ordered[:1]
    more = f" and {len(ordered) - len(shown)} more" if len(shown) < len(ordered) else ""
    return ", ".join(map(module_name, shown)) + more if ordered else "·"
