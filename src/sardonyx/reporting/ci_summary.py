"""A section of Markdown for the page of a CI job: what happened, which gates hold, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sardonyx.reporting import formatting, markdown
from sardonyx.reporting.gate import Baseline, Measure, Outcome


@dataclass(frozen=True, slots=True)
class Section:
    """What one command has to say."""

    title: str  # what was done
    sentence: str
    failed: bool  # something went wrong before any gate was held
    outcomes: Sequence[Outcome]
    numbers: Mapping[str, Measure]
    baseline: Baseline | None


def render_section(section: Section) -> str:
    """The section, from its heading on."""
    unmet = sum(not each.met for each in section.outcomes)
    if section.failed:
        mark, verdict = "❌", "failed"
    elif unmet:
        mark, verdict = "❌", f"{unmet} of {formatting.plural(len(section.outcomes), 'gate')} not met"
    else:
        mark, verdict = "✅", f"{formatting.plural(len(section.outcomes), 'gate')} met" if section.outcomes else "done"
    heading = f"### {mark} {markdown.escaped(section.title)}: {verdict}"
    blocks = [heading, markdown.escaped(section.sentence), _gates(section.outcomes), _numbers(section)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _gates(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    lines = [
        (
            each.gate.text,
            str(each.measure) if each.measure.known else "not a number",
            each.limit,
            "" if each.baseline is None else str(each.baseline),
            "ok" if each.met else "❌ not met",
        )
        for each in outcomes
    ]
    heads = ("fails if", "value", "limit", "baseline", "")
    return markdown.table(heads, lines, right=(False, True, True, True, False))


def _numbers(section: Section) -> str:
    """All numbers of the record that are known, each beside the baseline's."""
    shown = {name: number for name, number in section.numbers.items() if number.known and "." not in name}
    if not shown:
        return ""
    if section.baseline is None:
        lines = [(name, str(number)) for name, number in shown.items()]
        table = markdown.table(("number", "value"), lines, right=(False, True))
    else:
        before = section.baseline.measures
        lines = [(name, str(number), *_beside(number, before.get(name))) for name, number in shown.items()]
        heads = ("number", "value", "baseline", "change")
        table = markdown.table(heads, lines, right=(False, True, True, True))
    return f"<details><summary>Numbers</summary>\n\n{table}\n\n</details>"


def _beside(number: Measure, before: Measure | None) -> tuple[str, str]:
    if before is None or not before.known:
        return "", ""
    if number.value == before.value:
        return str(before), "·"
    if not before.value:
        return str(before), ""
    share = 100 * (number.value - before.value) / abs(before.value)
    return str(before), f"{'+' if share > 0 else '−'}{abs(share):.{0 if abs(share) >= 10 else 1}f} %"
