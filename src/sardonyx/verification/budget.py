"""How much a verification may take: about so many seconds, or ten runs of the model if that is longer."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 20.0
_LEAST_TRIALS = 5  # of the reference and of the candidate: ten runs
_PATIENCE = 3.0  # one run may take this many times the budget before it counts as one that does not end
_CALM = 1 << 30  # bytes of memory that no trial is left out for


@dataclass(slots=True)
class Budget:
    """What the runs of the reference have taken so far; the candidate is expected to take as long."""

    seconds: float = SECONDS
    weights: int = 0  # bytes that every run needs, whatever its size
    spent: float = 0.0
    trials: int = 0
    _largest: int = 0  # elements of the inputs of the largest trial: small ones tell nothing about growth
    _fewest: int | None = None  # elements of the inputs of the smallest trial
    _longest: float = 0.0  # seconds that the largest took
    _smallest: int = 0  # the least memory that a run took
    _widest: int = 0  # the memory that the largest took

    @property
    def longest_run(self) -> float:
        """Seconds after which a run is given up."""
        return _PATIENCE * self.seconds

    def count(self, elements: int, seconds: float, peak_bytes: int) -> None:
        """One more trial has run."""
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
        """Whether a trial on inputs of so many elements can be afforded."""
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
        return needed <= max(2 * self._smallest, _CALM)
