"""The result of tuning as a section: the models side by side, what was undone and why, what there was no time for."""

from __future__ import annotations

from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.run import Decision, RelativeTime, Tuning, TuningMeasurement
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import interval, is_too_noisy, percent, ratio, size, unresolved
from sardonyx.reporting.document import Notes, Paragraph, Row, Section, Table, Tone, View, text_column

UNDECIDED = "not examined"
_CHANGED = ("undone", "added")
_FINDINGS = {"same kernels": "the runtime runs the same kernels", "cannot run": "the runtime cannot run it"}


def tuning_section(tuning: Tuning | None, view: View) -> Section:
    """Return everything about a tuning; an empty section if nothing was tuned."""
    title = "On this machine"
    if tuning is None:
        return Section(title, ())
    return Section(
        title,
        (
            Paragraph(conditions(tuning)),
            standing_table(tuning),
            change_table(tuning),
            Notes(unchanged(tuning)),
            *([_question_table(tuning)] if view.verbose else []),
            Notes([result(tuning), *map(formatting.one_line, tuning.notes)]),
        ),
    )


def result(tuning: Tuning) -> str:
    """Return which model was chosen, and why."""
    return f"the result is the {tuning.chosen} one: {formatting.one_line(tuning.why)}"


def tuning_clause(tuning: Tuning | None) -> str | None:
    """Return what a closing sentence says about the time, or None if nothing was tuned."""
    if tuning is None:
        return None
    pace = next(pace for pace in tuning.standing if pace.name == tuning.chosen)
    if tuning.chosen == "source":
        return "left as it was, since every result is slower here"
    if pace.finding == Finding.SAME:
        compared = as_comparison(pace, tuning)
        return f"too noisy to time: {unresolved(compared)}" if is_too_noisy(compared) else "as fast as the source here"
    return f"{percent(1 - pace.ratio)} % {pace.finding} here {interval(pace)}"


def as_comparison(pace: RelativeTime, tuning: Tuning) -> Comparison:
    """Return the time of a model against the source as `bench` records it."""
    return Comparison(pace.ratio, pace.low, pace.high, tuning.floor, Finding(pace.finding), 0)


def conditions(tuning: Tuning) -> str:
    """Return the settings of the measurement and how much was measured."""
    parts = (
        formatting.plural(tuning.threads, "thread"),
        f"provider {formatting.name(tuning.provider)}",
        f"{tuning.clock} clock",
        size(tuning.sizes),
        f"{formatting.plural(len(tuning.questions), 'question')} in {formatting.seconds(tuning.seconds)} "
        f"of {formatting.seconds(tuning.budget)}",
        "" if tuning.load is None else f"load {tuning.load:.1f} before",
    )
    return ", ".join(filter(None, parts))


def standing_table(tuning: Tuning) -> Table:
    """Return the models with their times; the chosen one is strong."""
    rows: list[Row] = []
    for pace in tuning.standing:
        found = (ratio(pace), pace.finding) if rows else ("reference", f"± {percent(tuning.floor)} %")
        cells = (pace.name, formatting.count(pace.nodes), formatting.milliseconds(pace.milliseconds), *found)
        rows.append(Row(cells, Tone.STRONG if pace.name == tuning.chosen else Tone.PLAIN))
    return Table.of((text_column("model"), "nodes", "median ms", text_column("time / source"), text_column("")), rows)


def change_table(tuning: Tuning) -> Table:
    """Return the units that were changed."""
    headings = ("rewrites", "are", "time with the change", "")
    changed = (decision for decision in tuning.decisions if decision.choice in _CHANGED)
    rows = ((formatting.name(decision.unit), decision.choice, *_answer(tuning, decision)) for decision in changed)
    return Table.of(map(text_column, headings), rows)


def unchanged(tuning: Tuning) -> list[str]:
    """Return the units that were not changed, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for decision in tuning.decisions:
        if decision.choice not in (*_CHANGED, UNDECIDED):
            reasons.setdefault(_why(tuning, decision), []).append(decision.unit)
    groups = [*sorted(reasons.items()), ("no time to ask about", tuning.unexamined)]
    return [f"{why}: {', '.join(map(formatting.name, units))}" for why, units in groups if units]


def _why(tuning: Tuning, decision: Decision) -> str:
    """Return why a unit is as usual: the finding about the alternative."""
    question = _question(tuning, decision)
    finding = _FINDINGS.get(question.finding, question.finding)
    if question.does == "restore" and finding == "faster":
        finding = "slower"  # the question was asked the other way round
    return f"{decision.choice}, {finding} {'without' if decision.choice == 'kept' else 'with'}"


def _question(tuning: Tuning, decision: Decision) -> TuningMeasurement:
    assert decision.question is not None, "every examined unit has a question"
    return tuning.questions[decision.question]


def _answer(tuning: Tuning, decision: Decision) -> tuple[str, str]:
    question = _question(tuning, decision)
    others = len(question.units) - 1
    restored = "when taken back" if question.does == "restore" else ""
    together = f"together with {formatting.plural(others, 'other')}" if others else ""
    return _ratio(question), ", ".join(filter(None, (restored, together)))


def _ratio(question: TuningMeasurement) -> str:
    if question.ratio is None:
        return question.finding
    return f"{question.ratio:.3f} [{question.low:.3f}, {question.high:.3f}]"


def _question_table(tuning: Tuning) -> Table:
    columns = ("question", *map(text_column, ("to", "time", "finding")), "took", text_column("units"))
    rows = (
        (
            str(number),
            question.does,
            "·" if question.ratio is None else _ratio(question),
            f"{question.finding}{', done' if question.accepted else ''}",
            formatting.seconds(question.seconds),
            ", ".join(map(formatting.name, question.units)),
        )
        for number, question in enumerate(tuning.questions, 1)
    )
    return Table.of(columns, rows)
