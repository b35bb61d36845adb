"""A promise and the figure it is held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One bound and the figure it was held against."""

    what: str
    figure: float
    bound: float
    unit: str
    beside: str = ""

    @property
    def met(self) -> bool:
        """Whether the promise holds on this machine, now."""
        return self.figure <= self.bound

    def line(self) -> str:
        """One row of the closing table."""
        mark = "ok  " if self.met else "MISS"
        return f"{mark} {self.what:<58} {self.figure:8.4g} ≤ {self.bound:g} {self.unit:<7} {self.beside}".rstrip()
