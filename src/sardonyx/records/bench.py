"""How long models take and how sure that is, as plain data: what `bench` answers. Nothing here knows ONNX."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


class Finding(StrEnum):
    """What a comparison of two timings comes to."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


class Comparison(msgspec.Struct, frozen=True):
    """One timing as a multiple of another, paired by round; below 1 is faster."""

    ratio: float
    low: float  # of the interval around the ratio
    high: float
    floor: float  # relative noise of the reference against itself in the same race
    finding: Finding
    rounds: int

    @property
    def width(self) -> float:
        """The upper end as a multiple of the lower one, less one."""
        return self.high / self.low - 1 if self.low > 0 else math.inf


class Machine(msgspec.Struct, frozen=True):
    """What was measured on, and what else it did meanwhile; None where the system does not say."""

    cpu: str | None
    cores: int  # this process may use
    memory_bytes: int | None
    governor: str | None  # of the processor's frequency: "performance", "powersave"
    load_before: float | None  # processes that want a core, over the last minute
    load_after: float | None
    busy_before: float | None  # share of all cores that others used in the moment before, 0 to 1
    busy_during: float | None  # while models were timed


class BenchFile(msgspec.Struct, frozen=True):
    """One of the files that are compared."""

    label: str  # short name for tables
    path: str | None
    sha256: str | None
    bytes: int
    nodes: int


class Start(msgspec.Struct, frozen=True):
    """A model loaded and run once in a fresh process that does nothing else."""

    load_seconds: float  # to make the runtime's session
    first_run_seconds: float
    peak_bytes: int | None  # high-water mark of resident memory, less what was resident before loading


class Timing(msgspec.Struct, frozen=True):
    """One file at one size."""

    label: str
    seconds: tuple[float, ...]  # a run, by round
    median: float
    low_quartile: float
    high_quartile: float
    low_whisker: float  # the outermost rounds within one and a half box lengths of the quartiles
    high_whisker: float
    against_first: Comparison | None  # None for the first file itself
    starts: tuple[Start, ...] = ()
    disagrees: str | None = None  # how its answers differ from the first file's, where they clearly do

    @property
    def load_seconds(self) -> float | None:
        """To make the session: the median over the starts."""
        return _middle([each.load_seconds for each in self.starts])

    @property
    def first_run_seconds(self) -> float | None:
        """The first run after loading: the median over the starts."""
        return _middle([each.first_run_seconds for each in self.starts])

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that loading and a first run took: the median over the starts."""
        known = sorted(each.peak_bytes for each in self.starts if each.peak_bytes is not None)
        return known[len(known) // 2] if known else None


class Point(msgspec.Struct, frozen=True):
    """All files at one size of the inputs."""

    sizes: dict[str, int]  # of the dims that inputs leave open
    inputs: dict[str, str]  # by name: "float32[1,128]"
    floor: float  # relative noise of the first file against itself
    timings: tuple[Timing, ...]  # in the order of the files


class Benchmark(Record, frozen=True, tag="bench"):
    """One or more files, timed in turns under the same settings on the same inputs; the first is the reference."""

    title = "a benchmark"
    environment: Environment
    machine: Machine
    options: dict[str, Any]  # seconds, threads, provider, level, isolate, seed, and what was asked of sizes
    files: tuple[BenchFile, ...]
    points: tuple[Point, ...]  # in the order of the sweep
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()


def _middle(numbers: list[float]) -> float | None:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2] if ordered else None
