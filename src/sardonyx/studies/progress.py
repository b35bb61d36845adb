"""How far a study is: how many cells are done, what is running, and how long the rest will take where that shows."""

from __future__ import annotations

import time

from sardonyx.records.progress import Progress
from sardonyx.studies.experiment import Cell

_ENOUGH = 3  # cells that must have ended before the rest can be foretold


class Pace:
    """Tells whoever listens, as cells begin and end.

    Args:
        total: cells of this part of the study, kept ones included.
        missing: those of them to be computed now.
        jobs: how many at once.
        progress: who listens.
    """

    def __init__(self, total: int, missing: int, jobs: int, progress: Progress | None) -> None:
        self._total, self._missing, self._jobs, self._progress = total, missing, jobs, progress
        self._ended = 0
        self._running: dict[tuple[str, str, str], str] = {}
        self._began = time.monotonic()

    def tell(self, cell: Cell, *, ended: bool) -> None:
        """A cell has begun, or has ended."""
        name = (cell.experiment, cell.model, cell.key)
        if ended:
            self._running.pop(name, None)
            self._ended += 1
        else:
            self._running[name] = f"{cell.experiment} of {cell.model}" if cell.model else cell.experiment
        if self._progress is not None:
            self._progress(self.words(), (self._total - self._missing + self._ended) / self._total)

    def words(self) -> str:
        """One line."""
        done = f"{self._total - self._missing + self._ended}/{self._total}"
        doing = ", ".join(dict.fromkeys(self._running.values()))
        return " · ".join(filter(None, (done, doing, self._left())))

    def _left(self) -> str:
        if self._ended < _ENOUGH:
            return ""
        left = (time.monotonic() - self._began) / self._ended * (self._missing - self._ended)
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
