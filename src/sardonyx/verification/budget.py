"""The time and memory that a verification may use: a number of seconds, or ten runs of the model if that is longer."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 20.0
_LEAST_TRIALS = 5  # run by the reference and by the candidate: ten runs
_TIMEOUT_FACTOR = 3.0  # a run that takes this many times the budget is stopped
_FREE_BYTES = 1 << 30  # no trial is skipped for using less memory than this


@dataclass(slots=True)
class Budget:
    """Time and memory used by the runs of the reference so far; the candidate is expected to use as much.

    A trial of n input elements fits if `2 · (spent + t · n / N) ≤ seconds`, where N and t are the elements and the
    seconds of the largest trial so far, and if its memory, extrapolated from that trial in the same way, is at most
    twice that of the smallest one. The first five trials always fit.
    """

    seconds: float = SECONDS
    weights: int = 0  # bytes that every run needs, whatever its size
    spent: float = 0.0
    trials: int = 0
    _largest: int = 0  # input elements of the largest trial; smaller ones say nothing about growth
    _fewest: int | None = None  # input elements of the smallest trial
    _longest: float = 0.0  # seconds of the largest trial
    _smallest: int = 0  # bytes of the run that used the least memory
    _widest: int = 0  # bytes of the largest trial

    @property
    def longest_run(self) -> float:
        """Seconds after which a run is stopped."""
        return _TIMEOUT_FACTOR * self.seconds

    def count(self, elements: int, seconds: float, peak_bytes: int) -> None:
        """Add one trial."""
        self.trials += 1
        self.spent += seconds
        if elements >= self._largest:
            self._longest = max(self._longest if elements == self._largest else 0.0, seconds)
            self._widest = max(self._widest, peak_bytes)
            self._largest = elements
        self._fewest = elements if self._fewest is None else min(self._fewest, elements)
        if peak_bytes:
            self._smallest = min(self._smallest or peak_bytes, peak_bytes)

    def fits(self, elements: int) -> bool:
        """Return whether a trial with this many input elements fits the budget."""
        return self._fits_time(elements) and self._fits_memory(elements)

    def _fits_time(self, elements: int) -> bool:
        if self.trials < _LEAST_TRIALS:
            return True
        return 2 * (self.spent + self._longest * elements / max(self._largest, 1)) <= self.seconds

    def _fits_memory(self, elements: int) -> bool:
        if not self._smallest or elements <= self._largest:
            return True
        fixed = max(self.weights, self._smallest) if self._fewest != self._largest else self.weights
        needed = fixed + (self._widest - fixed) * elements / max(self._largest, 1)
        return needed <= max(2 * self._smallest, _FREE_BYTES)
