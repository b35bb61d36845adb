"""How much a verification may take: about so many seconds, or ten runs of the model if that is longer."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    _slowest: float = 0.0  # seconds for each element of the inputs
    _smallest: int = 0  # the least memory that a run took
    _widest: float = 0.0  # bytes beside the weights for each element of the inputs
    sizes: list[int] = field(default_factory=list[int])

    @property
    def longest_run(self) -> float:
        """Seconds after which a run is given up."""
        return _PATIENCE * self.seconds

    def count(self, elements: int, seconds: float, peak_bytes: int) -> None:
        """One more trial has run."""
        self.trials += 1
        self.spent += seconds
        self.sizes.append(elements)
        self._slowest = max(self._slowest, seconds / max(elements, 1))
        if peak_bytes:
            self._smallest = min(self._smallest or peak_bytes, peak_bytes)
            self._widest = max(self._widest, max(peak_bytes - self.weights, 0) / max(elements, 1))

    def fits(self, elements: int) -> bool:
        """Whether a trial on inputs of so many elements can be afforded."""
        return self._fits_time(elements) and self._fits_memory(elements)

    def _fits_time(self, elements: int) -> bool:
        if self.trials < _LEAST_TRIALS:
            return True
        return 2 * (self.spent + elements * self._slowest) <= self.seconds

    def _fits_memory(self, elements: int) -> bool:
        if not self._smallest or elements <= max(self.sizes):
            return True
        return self.weights + elements * self._widest <= max(2 * self._smallest, _CALM)
