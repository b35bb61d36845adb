"""Opportunities as a document: the patterns that are left with the reasons, and what each pass would do."""

from __future__ import annotations

from sardonyx.records.inspection import Opportunities, PatternCount, WhyLeft
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Column, Document, Row, Section, Span, Table, Tone, View, text_column
from sardonyx.reporting.inspection import listed, module_name
from sardonyx.reporting.run import skipped_row

REASONS = 2  # shown for a pattern; -v shows all


def opportunities_document(opportunities: Opportunities, view: View) -> Document:
    """Return the answer of `inspect --opportunities`."""
    return Document(
        title=opportunities.path or "model in memory",
        blocks=(_patterns(opportunities, view), _passes(opportunities, view)),
        sentence=Span(opportunities_sentence(opportunities), Tone.STRONG),
    )


def opportunities_sentence(opportunities: Opportunities) -> str:
    """Return how many nodes an optimization would leave, and how many patterns."""
    before, after = opportunities.before.nodes, opportunities.after.nodes
    patterns = [pattern for pattern in opportunities.patterns if not pattern.made]
    had, left = sum(pattern.before for pattern in patterns), sum(pattern.after for pattern in patterns)
    counts = formatting.from_to(formatting.count(before), formatting.count(after))
    return (
        f"optimizing for {formatting.name(opportunities.target)} would give {counts} nodes "
        f"({formatting.percent(before, after)}); "
        f"{formatting.count(left)} of {formatting.plural(had, 'pattern match', 'pattern matches')} would be left"
    )


def _patterns(opportunities: Opportunities, view: View) -> Section:
    columns = (text_column("pattern"), Column("before"), Column("after"), text_column("why left"))
    shown = [pattern for pattern in opportunities.patterns if view.verbose or pattern.before or pattern.after]
    rows: list[Row] = []
    for pattern in shown:
        first, *others = _reasons(pattern, view)
        counts = (formatting.count(pattern.before), formatting.count(pattern.after))
        tone = Tone.FAINT if pattern.made else Tone.PLAIN
        rows.append(Row((formatting.name(pattern.what), *counts, first), tone))
        rows.extend(Row(("", "", "", other)) for other in others)
    rest = len(opportunities.patterns) - len(shown)
    if rest:
        rows.append(Row((f"({formatting.plural(rest, 'other pattern')} not in this model)",), Tone.FAINT))
    return Section("Patterns", (Table(columns, rows),))


def _reasons(pattern: PatternCount, view: View) -> list[str]:
    if pattern.made:
        return ["produced by fusions"]
    if not pattern.after:
        return ["·"]
    shown = pattern.why if view.verbose else pattern.why[:REASONS]
    rest = sum(why.count for why in pattern.why) - sum(why.count for why in shown)
    return [_reason(why, view) for why in shown] + ([f"{rest}× for other reasons"] if rest else [])


def _reason(why: WhyLeft, view: View) -> str:
    name = "" if why.pass_name is None else f"{formatting.name(why.pass_name)}: "
    place = f"in {_where(why.modules, view)}" if view.verbose else f"e.g. {formatting.name(why.examples[0], 50)}"
    return f"{why.count}× {name}{formatting.one_line(why.reason)} ({place})"


def _passes(opportunities: Opportunities, view: View) -> Section:
    columns = (text_column("pass"), Column("would apply"), Column("nodes"), text_column("where"))
    rows: list[Row] = []
    for record in opportunities.passes:
        if not record.rewrites and not (view.verbose and record.refusals):
            continue
        count = formatting.count(record.rewrites) if record.rewrites else "·"
        where = _where(record.modules, view)
        rows.append(Row((formatting.name(record.name), count, formatting.change(record.nodes), where)))
        rows += map(skipped_row, record.refusals if view.verbose else ())
    return Section("Passes", (Table(columns, rows),))


def _where(modules: dict[str, int], view: View) -> str:
    """Return the modules with most rewrites first; all of them if verbose."""
    ordered = sorted(modules, key=lambda path: (-modules[path], path))
    return listed(list(map(module_name, ordered)), None if view.verbose else 1) or "·"
