"""The record of `bench`: latencies of models with their confidence intervals."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


class Finding(StrEnum):
    """The result of a comparison of two timings."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


class Comparison(msgspec.Struct, frozen=True):
    """The ratio of one timing to another, paired by round; below 1 is faster."""

    ratio: float
    low: float  # ends of the confidence interval of the ratio
    high: float
    floor: float  # relative noise: the reference measured against itself in the same rounds
    finding: Finding
    rounds: int

    @property
    def width(self) -> float:
        """The relative width of the interval: high / low - 1."""
        return self.high / self.low - 1 if self.low > 0 else math.inf


BUSY = 0.1  # share of all cores used by other processes that is worth a warning


class Machine(msgspec.Struct, frozen=True):
    """The machine, and its load during the measurement; None for what the system does not report."""

    cpu: str | None
    cores: int  # available to this process
    memory_bytes: int | None
    governor: str | None  # CPU frequency governor: "performance", "powersave"
    load_before: float | None  # runnable processes, averaged over the last minute
    load_after: float | None
    busy_before: float | None  # share of the CPU used by other processes right before, 0 to 1
    busy_during: float | None  # during the measurement

    @property
    def busy(self) -> float | None:
        """The share of the CPU used by other processes, if it is large enough to disturb a measurement."""
        share = self.busy_during if self.busy_during is not None else self.busy_before
        return share if share is not None and share >= BUSY else None


class BenchFile(msgspec.Struct, frozen=True):
    """One of the compared files."""

    label: str  # short name for tables
    path: str | None
    sha256: str | None
    bytes: int
    nodes: int


class Start(msgspec.Struct, frozen=True):
    """A model loaded and run once in a new process."""

    load_seconds: float  # to create the session of the runtime
    first_run_seconds: float
    peak_bytes: int | None  # peak resident memory minus what was resident before loading


class Timing(msgspec.Struct, frozen=True):
    """The timing of one file at one size."""

    label: str
    seconds: tuple[float, ...]  # per run, by round
    median: float
    low_quartile: float
    high_quartile: float
    low_whisker: float  # the outermost rounds within 1.5 IQR of the quartiles
    high_whisker: float
    against_first: Comparison | None  # None for the first file itself
    starts: tuple[Start, ...] = ()
    disagrees: str | None = None  # how its outputs differ from those of the first file, if they clearly do

    @property
    def load_seconds(self) -> float | None:
        """The time to create the session: the median over the starts."""
        return _median([start.load_seconds for start in self.starts])

    @property
    def first_run_seconds(self) -> float | None:
        """The time of the first run after loading: the median over the starts."""
        return _median([start.first_run_seconds for start in self.starts])

    @property
    def peak_bytes(self) -> int | None:
        """The peak memory of loading and a first run: the median over the starts."""
        known = sorted(start.peak_bytes for start in self.starts if start.peak_bytes is not None)
        return known[len(known) // 2] if known else None


class Point(msgspec.Struct, frozen=True):
    """The timings of all files at one size of the inputs."""

    sizes: dict[str, int]  # of the dynamic dimensions
    inputs: dict[str, str]  # by name: "float32[1,128]"
    floor: float  # relative noise of the first file against itself
    timings: tuple[Timing, ...]  # in the order of the files


class Benchmark(Record, frozen=True, tag="bench"):
    """One or more files, timed in interleaved rounds with the same settings and inputs; the first is the reference."""

    title = "a benchmark"
    environment: Environment
    machine: Machine
    options: dict[str, Any]  # seconds, threads, provider, level, isolate, seed, and the requested sizes
    files: tuple[BenchFile, ...]
    points: tuple[Point, ...]  # in the order of the sweep
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()


def _median(numbers: list[float]) -> float | None:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2] if ordered else None
