"""Worker processes of a campaign: each examines seeds one after another, and is replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Report(Protocol):
    """What became of one seed."""

    @property
    def faults(self) -> Sequence[object]:
        """What is wrong."""
        ...


R = TypeVar("R", bound=Report)
Connection = multiprocessing.connection.Connection


@dataclass(frozen=True)
class Job(Generic[R]):
    """What the workers of a campaign do.

    Args:
        work: Runs in the worker: sends (seed, stage) before each stage, a report for each seed, and None at the end.
        ended: Returns the report of a seed in whose stage the worker died (False) or was killed as hanging (True).
        silence: Seconds without a message, on the clock, after which a worker hangs in this stage.
        computing: Seconds of the CPU after which a worker hangs in one seed.
    """

    work: Callable[[Connection, range], None]
    ended: Callable[[int, str, bool, int | None], R]
    silence: Callable[[str], float]
    computing: float = math.inf


class Lane(Generic[R]):
    """A worker process and what it is doing; it is started again after the seed that ended it."""

    def __init__(self, seeds: range, job: Job[R]) -> None:
        self.left, self.done, self._job = seeds, not seeds, job
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=self._job.work, args=(theirs, self.left))
        self.process.start()
        theirs.close()
        self.heard, self.computed = time.monotonic(), 0.0
        self.seed, self.stage = self.left[0] if self.left else -1, "start"

    def reports(self) -> list[R]:
        """What has arrived; a death or a silence is a report too."""
        found: list[R] = []
        with contextlib.suppress(EOFError):
            while self.ours.poll():
                message = self.ours.recv()
                self.heard = time.monotonic()
                if message is None:
                    self.done = True
                elif isinstance(message, tuple):
                    self.seed, self.stage = message
                else:
                    found.append(message)
                    self.left = self.left[1:]
        if self.done:
            self.process.join()
        elif not self.process.is_alive() or self._hangs(afresh=bool(found)):
            found.append(self._ended())
        return found

    def _hangs(self, *, afresh: bool) -> bool:
        computed = _cpu_seconds(self.process.pid or 0)
        if afresh:
            self.computed = computed
        silence = time.monotonic() - self.heard
        return computed - self.computed > self._job.computing or silence > self._job.silence(self.stage)

    def _ended(self) -> R:
        hangs = self.process.is_alive()
        self.process.kill()
        self.process.join()
        report = self._job.ended(self.seed, self.stage, hangs, self.process.exitcode)
        self.left = self.left[1:]
        self.done = not self.left
        if not self.done:
            self._start()
        return report


def campaign(seeds: range, jobs: int, job: Job[R], *, quiet: bool = False) -> list[R]:
    """Every report of a range of seeds; their number and that of the seeds with faults are printed now and then."""
    lanes = [Lane(seeds[number::jobs], job) for number in range(jobs)]
    reports: list[R] = []
    began = said = time.monotonic()
    while not all(lane.done for lane in lanes):
        multiprocessing.connection.wait([lane.ours for lane in lanes if not lane.done], timeout=1.0)
        for lane in lanes:
            if not lane.done:
                reports += lane.reports()
        if not quiet and time.monotonic() - said > 20:
            said = time.monotonic()
            wrong = sum(bool(each.faults) for each in reports)
            rate = len(reports) / (said - began)
            print(f"{len(reports)} of {len(seeds)}, {wrong} with faults, {rate:.1f}/s", file=sys.stderr, flush=True)
    return reports


def _cpu_seconds(process: int) -> float:
    """The time that a process and its living children have computed."""
    total = 0.0
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for each in (str(process), *children):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
