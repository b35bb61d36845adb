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


def memory_of_all(command: Sequence[str]) -> tuple[int, int]:
    """Run a command, and return the peaks in MB of it and all processes it starts: private memory, pages of files."""
    process = subprocess.Popen(command, env=_ENVIRONMENT)
    private = pages = 0
    while process.poll() is None:
        resident = [_resident(pid) for pid in _family(process.pid)]
        private = max(private, sum(own for own, _ in resident))
        pages = max(pages, sum(mapped for _, mapped in resident))
        time.sleep(0.02)
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit {process.returncode}")
    return private // 1000, pages // 1000


def _family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    try:
        tasks = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it has ended
        return []
    return [pid, *(other for children in tasks for child in children.split() for other in _family(int(child)))]


def _resident(pid: int) -> tuple[int, int]:
    """Return the resident kB of a process: private ones, and pages of files."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:  # it has ended
        return 0, 0
    private, pages = (int(lines.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile"))
    return private, pages
