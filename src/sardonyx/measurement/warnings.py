"""Notes of a benchmark: a busy machine, models with different outputs, sizes that the user did not choose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sardonyx.measurement.machine import BUSY
from sardonyx.measurement.sessions import TimingClock
from sardonyx.measurement.trial import Conditions
from sardonyx.records.bench import Finding, Machine, Point


def notes(points: Sequence[Point], machine: Machine, conditions: Conditions, chosen: Collection[str]) -> Iterator[str]:
    """Yield the notes, one line each.

    Args:
        points: The timings at all sizes.
        machine: The machine they were taken on.
        conditions: The conditions of all timings.
        chosen: Dynamic dimensions whose size the user chose.
    """
    assumed = {dim: size for dim, size in points[0].sizes.items() if dim not in chosen}
    if assumed:
        listed = ", ".join(f"{dim}={size}" for dim, size in assumed.items())
        how = "`sizes={'NAME': N}` sets one, `sweep={'NAME': [N, N]}` several"
        yield f"assumed sizes of dynamic dimensions: {listed}; {how}"
    yield from _load(points, machine, conditions)
    if conditions.settings.threads > machine.cores:
        yield f"{conditions.settings.threads} threads share {machine.cores} cores, which makes all of them slower"
    if any(_medians_mislead(point) for point in points):
        yield (
            "medians and ratios disagree: the speed of the machine changed during the measurement, "
            "which affects medians but not ratios, which are taken within rounds"
        )
    yield from _different_outputs(points)


def _load(points: Sequence[Point], machine: Machine, conditions: Conditions) -> Iterator[str]:
    busy = machine.busy_during if machine.busy_during is not None else machine.busy_before
    if busy is not None and busy >= BUSY:
        alone = conditions.settings.threads == 1 and conditions.clock is TimingClock.WALL
        remedy = '; `clock="cpu"` does not count their time' if alone else ""
        yield (
            f"the machine is busy: other processes used {100 * busy:.0f} % of the CPU, which widens the intervals; "
            f"differences below {100 * max(map(_smallest_visible, points)):.1f} % are within the noise{remedy}"
        )


def _smallest_visible(point: Point) -> float:
    """Return the smallest relative difference that noise and intervals do not hide."""
    compared = [timing.against_first for timing in point.timings if timing.against_first is not None]
    return max([point.floor, *((comparison.high - comparison.low) / 2 for comparison in compared)])


def _medians_mislead(point: Point) -> bool:
    """Return whether some file has a larger median than the first but is faster by its ratios, or the reverse."""
    first = point.timings[0].median
    for timing in point.timings[1:]:
        finding = timing.against_first.finding if timing.against_first is not None else Finding.SAME
        if timing.median > first and finding is Finding.FASTER:
            return True
        if timing.median < first and finding is Finding.SLOWER:
            return True
    return False


def _different_outputs(points: Sequence[Point]) -> Iterator[str]:
    """Yield the first difference of each file; the other sizes differ alike."""
    noted: set[str] = set()
    for point in points:
        for timing in point.timings:
            if timing.disagrees is not None and timing.label not in noted:
                noted.add(timing.label)
                yield (
                    f"the outputs of {timing.label} differ from those of the first file: {timing.disagrees}; "
                    "they may not compute the same (`sardonyx verify` compares them)"
                )
