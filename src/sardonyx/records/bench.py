"""The records of `bench`, `profile` and `placement`: latencies, times by node, execution providers."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal

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


BUSY_SHARE = 0.1  # share of all cores used by other processes that is worth a warning


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
        return share if share is not None and share >= BUSY_SHARE else None


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


class TracedBy(StrEnum):
    """How the nodes of the file that a kernel executes were identified."""

    NAME = "name"  # the kernel has the name of the node
    ATTRIBUTE = "attribute"  # the node has its tag as an attribute
    VALUES = "values"  # by the values of the file that it reads and writes
    NEIGHBOURS = "neighbours"  # inserted by the runtime; taken from its consumers or producers
    NOTHING = "nothing"  # not attributed


class KernelTime(msgspec.Struct, frozen=True):
    """One kernel that the runtime executed."""

    name: str
    op_type: str
    provider: str
    nodes: tuple[str, ...]  # nodes of the file that it executes
    origins: tuple[str, ...]  # modules of these nodes
    owner: str | None  # instance path of their lowest common module ("" is the model itself); None: not attributed
    traced_by: TracedBy
    milliseconds: float  # per run: the median over the runs, without the kernels of its bodies
    calls: int  # per run


class ModuleTime(msgspec.Struct, frozen=True):
    """One module of the source model, with times per run."""

    path: str  # instance path; "" is the model itself
    tag: str
    self_ms: float  # in kernels that it owns
    total_ms: float  # with every module below it
    kernels: int  # that it owns
    calls: int  # of kernels that it owns, per run
    share: float  # total_ms divided by the time in all kernels, 0 to 1


class Slice(msgspec.Struct, frozen=True):
    """One call of a kernel on the timeline of one run."""

    kernel: int  # index in `ProfiledModel.kernels`
    start_us: float  # since the start of the run
    duration_us: float  # with the kernels of its bodies, whose slices lie within


class ProfiledModel(msgspec.Struct, frozen=True):
    """The profile of one file."""

    path: str | None
    label: str  # short name for tables
    nodes: int  # compute nodes of the file
    runs: int
    plain_ms: float  # median of a whole run without the profiler
    wall_ms: float  # median of a whole run with the profiler, including the time to write the profile
    kernel_ms: float  # in kernels per run: the sum of their medians
    attributed_ms: float  # in kernels that are attributed to a module or to the model itself
    kernels: tuple[KernelTime, ...]  # in execution order
    modules: tuple[ModuleTime, ...]  # by path, parents before children, also parents without kernels
    timeline: tuple[Slice, ...]  # of the run with the median time
    notes: tuple[str, ...] = ()

    @property
    def attributed(self) -> float:
        """The attributed share of the time in kernels, 0 to 1."""
        return self.attributed_ms / self.kernel_ms if self.kernel_ms else 1.0


class Profile(Record, frozen=True, tag="profile"):
    """One or more files, profiled with the same settings and inputs."""

    title = "a profile"
    environment: Environment
    options: dict[str, Any]  # threads, provider, level, sizes, seed, runs
    models: tuple[ProfiledModel, ...]
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()


Away = Literal["elsewhere", "fails", "wrong", "depends", "unknown"]


class AwayNodes(msgspec.Struct, frozen=True):
    """Nodes of one operator and one combination of types that do not run on the device."""

    operator: str
    types: tuple[str, ...]  # of the inputs; "" for one that is left out
    where: Away
    nodes: tuple[str, ...]
    modules: tuple[str, ...]


class PlacedModule(msgspec.Struct, frozen=True):
    """The own nodes of a module."""

    path: str
    tag: str
    nodes: int
    away: int  # of these, not on the device
    flops: int  # at the sizes of the example
    away_flops: int


class Placement(Record, frozen=True, tag="placement"):
    """Where the nodes of a model run, as the profile of a device predicts."""

    title = "a placement"
    model: str
    device: str
    runtime: str  # that was measured
    measured: str  # the day, and the machine
    nodes: int  # without Constants; bodies of control flow and functions included
    device_nodes: int
    host_nodes: int  # shape computations, which the runtime leaves on the CPU on purpose
    fallback_nodes: int
    unsupported_nodes: int
    unknown_nodes: int  # not measured, or dependent on attributes
    copies: int  # values that cross between the device and the CPU, those of shapes not counted
    away_flops: float  # share of all arithmetic that is not on the device
    away: tuple[AwayNodes, ...]  # the most nodes first
    modules: tuple[PlacedModule, ...]
    host: tuple[str, ...] = ()  # names of the shape computations
    notes: tuple[str, ...] = ()
