"""Short lists of module paths, in which consecutive numbers are ranges.

Twelve layers that were rewritten in the same way are `encoder.layer.0…11.attention`, not twelve lines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.reporting import formatting

RUNS = 4  # runs of consecutive numbers that are written in full


@dataclass(frozen=True, slots=True)
class Place:
    """Modules whose paths differ only in numbers."""

    label: str  # raw: may contain anything
    path: str  # the module itself, or the innermost one that contains all of them
    count: int


def places(modules: Mapping[str, int]) -> list[Place]:
    """Return the modules with their counts, largest first."""
    totals, members = Counter[tuple[str | None, ...]](), defaultdict[tuple[str | None, ...], list[list[str]]](list)
    for path, count in modules.items():
        steps = path.split(".")
        form = tuple(None if _is_number(step) else step for step in steps)
        totals[form] += count
        members[form].append(steps)
    result = [_place(form, members[form], total) for form, total in totals.items()]
    return sorted(result, key=lambda place: (-place.count, place.label))


def where(modules: Mapping[str, int], most: int = 2) -> str:
    """Return the modules with the largest counts, printable, and the number of the others."""
    sorted_places = places(modules)
    shown = ", ".join(formatting.name(place.label, 72) for place in sorted_places[:most])
    rest = len(sorted_places) - most
    return f"{shown} and {formatting.plural(rest, 'other module')}" if rest > 0 else shown


def _place(form: tuple[str | None, ...], paths: list[list[str]], count: int) -> Place:
    numbers = [{path[at] for path in paths} if step is None else {step} for at, step in enumerate(form)]
    steps = [min(values) if len(values) == 1 else _runs(set(map(int, values))) for values in numbers]
    same = next((at for at, values in enumerate(numbers) if len(values) > 1), len(form))
    return Place(".".join(steps) or formatting.MODEL, ".".join(min(values) for values in numbers[:same]), count)


def _runs(numbers: set[int]) -> str:
    """Return numbers as 0…11, as 0,2,4 if they are not consecutive, as 0,2,…,22 if there are many."""
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
