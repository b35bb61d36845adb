"""What measurements decide: which of the raced models is the result, and what became of each unit."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.measure.rounds import Race
from sardonyx.measure.statistics import Finding
from sardonyx.tuning.search import Found
from sardonyx.tuning.units import Unit
from sardonyx.tuning_record import Decision, Question

SOURCE, UNTUNED, TUNED = "source", "untuned", "tuned"


def choose(race: Race) -> tuple[str, str]:
    """The model to return, and why.

    What was undone was found faster before, so that a last race that cannot tell is no reason against it, unless it
    leans the other way. A result that is slower than the source is not returned.
    """
    results = [name for name in (TUNED, UNTUNED) if name in race.seconds]
    why = "nothing that could be undone is faster undone"
    if TUNED in results:
        gain = race.comparison(TUNED, UNTUNED)
        better = gain.finding is Finding.FASTER or (gain.finding is Finding.SAME and gain.ratio < 1)
        why = "it is the faster one" if better else "what the search undid is not faster all together"
        results = results if better else [UNTUNED, TUNED]
    for name in results:
        if race.comparison(name).finding is not Finding.SLOWER:
            return name, why if name == results[0] else f"the {results[0]} result is slower than the source"
    return SOURCE, "every result is slower than the source"


def decisions(units: Sequence[Unit], found: Found, questions: Sequence[Question]) -> tuple[Decision, ...]:
    """What became of each unit, and the last question that was about it."""
    decided: list[Decision] = []
    for unit in units:
        asked = [place for place, question in enumerate(questions) if unit.name in question.units]
        flipped = unit.name in found.flipped
        if not asked:
            choice = "not examined"
        elif unit.added:
            choice = "added" if flipped else "left out"
        else:
            choice = "undone" if flipped else "kept"
        place = asked[-1] if asked else None
        decided.append(Decision(unit.name, unit.passes, unit.family, unit.rewrites, choice, place))
    return tuple(decided)
