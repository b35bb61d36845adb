"""How timings and what they come to are written: in every view of a Benchmark the same."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.bench_record import Benchmark, Comparison, Finding, Point, Timing
from sardonyx.rendering import words

UNKNOWN = "?"


def milliseconds(seconds: float | None) -> str:
    """In milliseconds with three digits or more, the unit left to the heading."""
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    return f"{ms:,.{digits}f}"


def ratio(compared: Comparison) -> str:
    """The time as a multiple of the first file's: 0.877 [0.865, 0.890]."""
    return f"{compared.ratio:.3f} [{compared.low:.3f}, {compared.high:.3f}]"


def percent(share: float) -> str:
    """A share without its sign, fine enough to tell small ones from nothing."""
    return f"{abs(100 * share):.{1 if abs(share) < 1 else 0}f}"


def size(sizes: Mapping[str, int]) -> str:
    """Sizes of dims: "batch=1, seq=128"."""
    return ", ".join(f"{words.name(dim)}={words.count(each)}" for dim, each in sizes.items())


def varied(found: Benchmark) -> list[str]:
    """The dims that differ between sizes, in their order."""
    return [dim for dim in found.points[0].sizes if len({point.sizes[dim] for point in found.points}) > 1]


def size_of(point: Point, found: Benchmark) -> str:
    """What sets a size apart from the others."""
    return size({dim: point.sizes[dim] for dim in varied(found)})


def verdict(timing: Timing, first: Timing) -> str:
    """What a comparison lets one say, as a sentence without its stop."""
    compared = timing.against_first
    name, other = words.name(timing.label), words.name(first.label)
    if compared is None:
        return f"{name} takes {milliseconds(timing.median)} ms"
    if compared.finding is Finding.SAME:
        return f"no difference between {name} and {other}: within {percent(reach(compared))} % either way"
    near, far = sorted((abs(1 - compared.low), abs(1 - compared.high)))
    interval = f"[{percent(near)}, {percent(far)}]"
    return f"{name} is {percent(1 - compared.ratio)} % {compared.finding} than {other} {interval}"


def reach(compared: Comparison) -> float:
    """How large a difference there may be that was not found: as far as the interval or the noise goes."""
    return max(1 - compared.low, compared.high - 1, compared.floor)


def alone(found: Benchmark, point: Point) -> str:
    """What is said of a file that nothing is compared with."""
    only = point.timings[0]
    at = f" at {size_of(point, found)}" if len(found.points) > 1 else ""
    return (
        f"{words.name(only.label)} takes {milliseconds(only.median)} ms{at} (median of "
        f"{words.plural(len(only.seconds), 'round')}); two sessions of it are within {percent(point.floor)} %"
    )


def bench_sentence(found: Benchmark) -> str:
    """What came out, in one line."""
    if len(found.files) == 1:
        return "; ".join(alone(found, point) for point in found.points)
    if len(found.points) == 1:
        timings = found.points[0].timings
        return "; ".join(verdict(each, timings[0]) for each in timings[1:])
    return "; ".join(_over_sizes(found, place) for place in range(1, len(found.files)))


def _over_sizes(found: Benchmark, place: int) -> str:
    compared = [each for point in found.points if (each := point.timings[place].against_first) is not None]
    said: list[str] = []
    for finding in Finding:
        shares = [abs(1 - each.ratio) for each in compared if each.finding is finding]
        if not shares:
            continue
        least, most = percent(min(shares)), percent(max(shares))
        by = "" if finding is Finding.SAME else f" (by {least}{'' if least == most else f' to {most}'} %)"
        said.append(f"{finding} at {len(shares)} of {len(compared)}{by}")
    name, other = words.name(found.files[place].label), words.name(found.files[0].label)
    return f"{name} against {other}, by size: {', '.join(said)}"
