"""Where something happened, in few words: the paths of many modules as a few, in which numbers that follow are ranges.

Twelve layers that were all rewritten alike read as `encoder.layer.0…11.attention`, not as twelve lines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.reporting import formatting

RUNS = 4  # of numbers that follow each other, written out one by one
MODEL = "(model)"


@dataclass(frozen=True, slots=True)
class Place:
    """Modules whose paths differ in their numbers alone, as one."""

    label: str  # not yet fit to be shown: names are what a file says
    path: str  # the module itself, or what all of them lie in
    count: int


def places(modules: Mapping[str, int]) -> list[Place]:
    """Where the counted things lie, most first."""
    totals, alike = Counter[tuple[str | None, ...]](), defaultdict[tuple[str | None, ...], list[list[str]]](list)
    for path, count in modules.items():
        steps = path.split(".")
        form = tuple(None if _is_number(step) else step for step in steps)
        totals[form] += count
        alike[form].append(steps)
    found = [_place(form, alike[form], total) for form, total in totals.items()]
    return sorted(found, key=lambda each: (-each.count, each.label))


def where(modules: Mapping[str, int], most: int = 2) -> str:
    """The places with most of it, fit to be shown, and how many more there are."""
    found = places(modules)
    shown = ", ".join(formatting.name(place.label, 72) for place in found[:most])
    return f"{shown} and {formatting.plural(len(found) - most, 'other place')}" if len(found) > most else shown


def _place(form: tuple[str | None, ...], paths: list[list[str]], count: int) -> Place:
    numbers = [{path[at] for path in paths} if step is None else {step} for at, step in enumerate(form)]
    steps = [min(each) if len(each) == 1 else _runs(set(map(int, each))) for each in numbers]
    same = next((at for at, each in enumerate(numbers) if len(each) > 1), len(form))
    return Place(".".join(steps) or MODEL, ".".join(min(each) for each in numbers[:same]), count)


def _runs(numbers: set[int]) -> str:
    """0…11; 0,2,4 where they do not follow each other; 0,2,…,22 where that are many."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    written = [str(run[0]) if len(run) == 1 else f"{run[0]}{'…' if len(run) > 2 else ','}{run[-1]}" for run in runs]
    return ",".join(written if len(written) <= RUNS else [*written[: RUNS - 2], "…", written[-1]])


def _is_number(step: str) -> bool:
    return step.isascii() and step.isdecimal() and len(step) < 10 and (step == "0" or step[0] != "0")
