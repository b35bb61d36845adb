"""What a reader of timings must be warned of: a busy machine, models that answer differently, sizes nobody chose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sardonyx.measurement.machine import BUSY
from sardonyx.measurement.sessions import Timepiece
from sardonyx.measurement.trial import Conditions
from sardonyx.records.bench import Finding, Machine, Point


def remarks(points: Sequence[Point], machine: Machine, under: Conditions, chosen: Collection[str]) -> Iterator[str]:
    """One line each.

    Args:
        points: all that was timed.
        machine: what it was timed on.
        under: which conditions.
        chosen: dims whose size somebody asked for.
    """
    assumed = {dim: size for dim, size in points[0].sizes.items() if dim not in chosen}
    if assumed:
        said = ", ".join(f"{dim}={size}" for dim, size in assumed.items())
        yield f"assumed sizes of open dims: {said}; --size DIM=N sets one, --sweep DIM=N,N several"
    yield from _of_load(points, machine, under)
    if under.settings.threads > machine.cores:
        yield f"{under.settings.threads} threads share {machine.cores} cores: the times are those of a crowded machine"
    if any(_medians_mislead(point) for point in points):
        yield (
            "the medians and the ratios point different ways: the machine changed its pace while models were timed; "
            "only ratios, taken within rounds, are free of that"
        )
    yield from _of_answers(points)


def _of_load(points: Sequence[Point], machine: Machine, under: Conditions) -> Iterator[str]:
    seen = machine.busy_during if machine.busy_during is not None else machine.busy_before
    if seen is not None and seen >= BUSY:
        cure = (
            "; --clock cpu leaves others out" if under.settings.threads == 1 and under.clock is Timepiece.WALL else ""
        )
        yield (
            f"the machine is busy: others used {100 * seen:.0f} % of it meanwhile, which widens the intervals; "
            f"differences below {100 * max(map(_blind, points)):.1f} % cannot be told from noise{cure}"
        )


def _blind(point: Point) -> float:
    """The relative difference that may be there unseen: as far as the noise and the intervals reach."""
    compared = [each.against_first for each in point.timings if each.against_first is not None]
    return max([point.floor, *((each.high - each.low) / 2 for each in compared)])


def _medians_mislead(point: Point) -> bool:
    first = point.timings[0].median
    for each in point.timings[1:]:
        finding = each.against_first.finding if each.against_first is not None else Finding.SAME
        if (finding is Finding.FASTER and each.median > first) or (finding is Finding.SLOWER and each.median < first):
            return True
    return False


def _of_answers(points: Sequence[Point]) -> Iterator[str]:
    """For each file the first difference; all sizes tell much the same."""
    told: set[str] = set()
    for point in points:
        for timing in point.timings:
            if timing.disagrees is not None and timing.label not in told:
                told.add(timing.label)
                yield (
                    f"{timing.label} does not answer as the first file does: {timing.disagrees}; "
                    "they may not compute the same (`sardonyx verify` tells)"
                )
