"""What tuning found, as text: the models side by side, what was undone and what it cost, what there was no time for."""

from __future__ import annotations

from sardonyx.records.tuning import Decision, Pace, Question, Tuning
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import milliseconds, percent, size
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

UNDECIDED = "not examined"
STANDING = (
    text_column("model"),
    Column("nodes"),
    Column("median ms"),
    text_column("time / source"),
    text_column(""),
)
CHANGES = (text_column("rewrites"), text_column("are"), text_column("time with the change"), text_column(""))
_CHANGED = ("undone", "added")


def tuning_lines(tuning: Tuning | None, view: View) -> list[str]:
    """The whole block; nothing where nothing was measured."""
    if tuning is None:
        return []
    return [
        view.style.strong("On this machine"),
        f"  {conditions(tuning)}",
        *_standing(tuning, view),
        "",
        *_decisions(tuning, view),
        *([*_questions(tuning, view)] if view.verbose else []),
        f"  the result is the {tuning.chosen} one: {formatting.one_line(tuning.why)}",
        *(f"  {formatting.one_line(note)}" for note in tuning.notes),
    ]


def tuning_clause(tuning: Tuning | None) -> str | None:
    """What a closing sentence says of the time; None where nothing was measured."""
    if tuning is None:
        return None
    pace = next(each for each in tuning.standing if each.name == tuning.chosen)
    if tuning.chosen == "source":
        return "left as it was, since every result is slower here"
    if pace.finding == "no difference":
        return "as fast as the source here"
    near, far = sorted((abs(1 - pace.low), abs(1 - pace.high)))
    return f"{percent(1 - pace.ratio)} % {pace.finding} here [{percent(near)}, {percent(far)}]"


def conditions(tuning: Tuning) -> str:
    """What was measured on and how much."""
    said = [
        formatting.plural(tuning.threads, "thread"),
        f"provider {formatting.name(tuning.provider)}",
        f"{tuning.clock} clock",
        *([size(tuning.sizes)] if tuning.sizes else []),
        f"{formatting.plural(len(tuning.questions), 'question')} in {formatting.seconds(tuning.seconds)} "
        f"of {formatting.seconds(tuning.budget)}",
        *([f"load {tuning.load:.1f} before"] if tuning.load is not None else []),
    ]
    return ", ".join(said)


def _standing(tuning: Tuning, view: View) -> list[str]:
    lines = [
        Line(pace_cells(pace, tuning), view.style.strong if pace.name == tuning.chosen else None)
        for pace in tuning.standing
    ]
    return table(STANDING, lines, view.style)


def pace_cells(pace: Pace, tuning: Tuning) -> tuple[str, ...]:
    """One row under `STANDING`."""
    reference = pace is tuning.standing[0]
    compared = "reference" if reference else f"{pace.ratio:.3f} [{pace.low:.3f}, {pace.high:.3f}]"
    finding = f"± {percent(tuning.floor)} %" if reference else pace.finding
    return (pace.name, formatting.count(pace.nodes), milliseconds(pace.milliseconds / 1000), compared, finding)


def _decisions(tuning: Tuning, view: View) -> list[str]:
    """What was changed line by line, then what was not in as few lines as there are reasons."""
    lines = [Line(cells) for cells in change_rows(tuning)]
    return [*(table(CHANGES, lines, view.style) if lines else []), *(f"  {line}" for line in unchanged(tuning))]


def change_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """What was changed, one row a unit under `CHANGES`."""
    changed = (each for each in tuning.decisions if each.choice in _CHANGED)
    return [(formatting.name(each.unit), each.choice, *_answer(tuning, each)) for each in changed]


def unchanged(tuning: Tuning) -> list[str]:
    """What was not changed, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for each in tuning.decisions:
        if each.choice not in (*_CHANGED, UNDECIDED):
            reasons.setdefault(_why(tuning, each), []).append(each.unit)
    said = [*sorted(reasons.items()), ("no time to ask about", tuning.unexamined)]
    return [f"{why}: {', '.join(map(formatting.name, units))}" for why, units in said if units]


_FINDINGS = {"same kernels": "the runtime runs the same kernels", "cannot run": "the runtime cannot run it"}


def _why(tuning: Tuning, decision: Decision) -> str:
    """Why a unit is as usual: what was found about the other way."""
    question = _question(tuning, decision)
    finding = _FINDINGS.get(question.finding, question.finding)
    if question.does == "restore" and finding == "faster":
        finding = "slower"  # the other way round
    return f"{decision.choice}, {finding} {'without' if decision.choice == 'kept' else 'with'}"


def _question(tuning: Tuning, decision: Decision) -> Question:
    assert decision.question is not None, "what was examined was asked about"
    return tuning.questions[decision.question]


def _answer(tuning: Tuning, decision: Decision) -> tuple[str, str]:
    question = _question(tuning, decision)
    others = len(question.units) - 1
    restored = "when taken back" if question.does == "restore" else ""
    together = f"together with {formatting.plural(others, 'other')}" if others else ""
    return _ratio(question), ", ".join(filter(None, (restored, together)))


def _ratio(question: Question) -> str:
    if question.ratio is None:
        return question.finding
    return f"{question.ratio:.3f} [{question.low:.3f}, {question.high:.3f}]"


def _questions(tuning: Tuning, view: View) -> list[str]:
    columns = (
        Column("question"),
        text_column("to"),
        text_column("time"),
        text_column("finding"),
        Column("took"),
        text_column("units"),
    )
    lines = [
        Line(
            (
                str(place + 1),
                question.does,
                "·" if question.ratio is None else _ratio(question),
                f"{question.finding}{', done' if question.accepted else ''}",
                formatting.seconds(question.seconds),
                ", ".join(map(formatting.name, question.units)),
            )
        )
        for place, question in enumerate(tuning.questions)
    ]
    return ["", *table(columns, lines, view.style), ""] if lines else []
