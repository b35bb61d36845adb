"""A piece of work on one model: what it needs, what it computes, and how it ended.

Work is independent of other work and gets nothing but its own fields, so that it can run in any process on any machine.
`fetch` and `publish` run in the process that was given the work, `compute` in a child of it: native code that crashes
there ends nothing but the child, and nothing is published before `compute` has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from sardonyx.temporary import temporary_folder

Answer = dict[str, Any]  # as JSON: tuples become lists, and numbers that are not finite become None


class Needs(Struct, frozen=True):
    """What a piece of work needs of the machine that runs it."""

    memory: int = 0  # estimated peak in bytes; 0: unknown
    timed: bool = False  # must run alone on the machine


def estimated_memory(weights: int) -> int:
    """Return an estimate of the peak memory of optimizing and verifying a model, from the bytes of its files.

    Two sessions of the runtime each hold the weights and their activations; the libraries need the rest.
    """
    return 400_000_000 + 4 * weights


class Outcome(Struct, frozen=True):
    """How a piece of work ended: its answer, or the reason why there is none."""

    answer: Answer | None
    reason: str | None  # one line if it failed, otherwise None
    seconds: float
    peak: int = 0  # bytes of memory, sampled; 0: unknown
    machine: str = ""  # where it ran
    attempts: int = 1
    died: bool = False  # its process ended before it answered, so that another attempt may succeed
    log: str = ""  # what it printed


class Work(ABC):
    """A piece of work; it is pickled, so its class must be importable where it runs."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return a name for progress and log files."""

    @property
    def needs(self) -> Needs:
        """Return what it needs of a machine."""
        return Needs()

    @contextmanager
    def scratch(self) -> Generator[Path]:
        """Provide an empty folder for its files, removed at the end."""
        with temporary_folder() as folder:
            yield Path(folder)

    def fetch(self, folder: Path) -> None:  # noqa: B027 (most works need nothing)
        """Bring what is not on a local disk into an empty folder."""

    @abstractmethod
    def compute(self, folder: Path) -> Answer:
        """Return the answer, and write result files to the folder, if there are any."""

    def publish(self, folder: Path, answer: Answer) -> None:  # noqa: B027 (most works have no files)
        """Move result files from the folder to where they belong, each completely or not at all."""
