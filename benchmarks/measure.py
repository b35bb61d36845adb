"""Cost of a command as the system accounts for it: wall time and peak memory of a fresh process.

Import nothing heavy here: a child's peak counts from the memory its parent had when it was started.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

# With compiled modules kept, as on anybody's machine after the first run; a cold compilation is not what is measured.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Cost:
    """Of one run, or the medians of several."""

    seconds: float  # wall
    cpu_seconds: float  # what the machine spent on it; other work on the machine hardly shows here
    peak_mb: float


class CommandFailed(Exception):
    """A measured command did not end well; its last lines say why."""


def run(command: Sequence[str]) -> Cost:
    """Run a command once, cold, its output swallowed unless it fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=said, stderr=said, env=_ENVIRONMENT)
        _, status, usage = os.wait4(child.pid, 0)  # unlike Popen.wait, tells what the child used
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise CommandFailed(f"{' '.join(command)}: exit {child.returncode}: {said.read().decode()[-600:]}")
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def interleaved(commands: Mapping[str, Sequence[str]], repeats: int) -> dict[str, list[Cost]]:
    """Every command `repeats` times, taking turns, so that a busy moment of the machine hits all of them alike."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            costs[name].append(run(command))
    return costs


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each measure by itself."""
    return Cost(*(statistics.median(column) for column in zip(*map(astuple, costs), strict=True)))


def paired_ratio(ours: Sequence[Cost], theirs: Sequence[Cost]) -> float:
    """The median of the time ratios of neighbouring runs."""
    return statistics.median(a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True))


def warm(path: Path) -> None:
    """Bring a file into the page cache, so that the first run does not pay for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 22):
            pass
