"""Time the phases of a command, and report each to a progress callback."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, float | None], None]


def duration(seconds: float) -> str:
    """Return a rough duration: 45 s, 3 min."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


class Clock:
    """Times the phases of a command, and reports each to the progress callback."""

    def __init__(self, tell: Progress | None = None) -> None:
        self.tell: Progress = tell or (lambda _phase, _fraction: None)
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Time the body of the `with` statement."""
        self.tell(name, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
