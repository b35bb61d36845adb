"""The sizes that models are timed at: every combination of what is swept, beside what is fixed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from sardonyx.errors import UsageError

MOST = 1000  # combinations: more is a slip of the hand, and would take a day


def points(sizes: Mapping[str, int] | None, sweep: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Sizes by dim, one dict a combination; the last dim that is swept changes fastest.

    Raises:
        UsageError: for a dim that is both fixed and swept, a size below 1, or far too many combinations.
    """
    fixed, swept = dict(sizes or {}), {dim: tuple(dict.fromkeys(each)) for dim, each in (sweep or {}).items()}
    for dim in swept:
        if dim in fixed:
            raise UsageError(f"{dim} is given one size and swept too", hint="give one of the two")
        if not swept[dim]:
            raise UsageError(f"{dim} is swept over no sizes", hint="name some: --sweep seq=16,128")
    for dim, size in [*fixed.items(), *((dim, size) for dim, each in swept.items() for size in each)]:
        if size < 1:
            raise UsageError(f"{dim} cannot be {size}", hint="sizes begin at 1")
    combinations = 1
    for each in swept.values():
        combinations *= len(each)
    if combinations > MOST:
        raise UsageError(f"the sweep has {combinations} combinations", hint=f"at most {MOST} are timed at once")
    return [fixed | dict(zip(swept, chosen, strict=True)) for chosen in itertools.product(*swept.values())]
