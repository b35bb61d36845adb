"""What a comparison left out, counted over all trials, and how the verdict says so."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum


class Reason(StrEnum):
    """Why something was not compared."""

    PADDING = "positions of '{name}' are padding that sees no key"
    TIE = "elements of '{name}' depend on the order of equal scores"


class LeftOut:
    """Counts, by reason and output."""

    def __init__(self) -> None:
        self._counts: dict[Reason, dict[str, tuple[int, int]]] = defaultdict(dict)

    def add(self, why: Reason, name: str, count: int, total: int) -> None:
        """Some parts of an output were not compared in a trial, of how many."""
        before = self._counts[why].get(name, (0, 0))
        self._counts[why][name] = (before[0] + count, before[1] + total)

    @property
    def lines(self) -> list[str]:
        """One line for each reason: the first output in figures, and how many more there are."""
        lines: list[str] = []
        for why, outputs in self._counts.items():
            (name, (count, total)), *others = outputs.items()
            rest = f", nor in {len(others)} other output{'s' if len(others) > 1 else ''}" if others else ""
            lines.append(f"{count} of {total} {why.format(name=name)}: not compared{rest}")
        return lines
