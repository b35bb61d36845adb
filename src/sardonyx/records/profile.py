"""Where models spend their time, as plain data: what `profile` answers. Nothing here knows ONNX or torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


class TracedBy(StrEnum):
    """What told which nodes of the file a kernel does the work of."""

    NAME = "name"  # the runtime kept the node's name
    ATTRIBUTE = "attribute"  # the tag that the node carries as an attribute
    VALUES = "values"  # it lies between values of the file that it reads and writes
    NEIGHBOURS = "neighbours"  # the runtime put it in; it belongs to what it feeds, or to what feeds it
    NOTHING = "nothing"  # not attributed


class KernelTime(msgspec.Struct, frozen=True):
    """One kernel of the graph as the runtime ran it."""

    name: str
    op_type: str
    provider: str
    nodes: tuple[str, ...]  # of the file, whose work it does
    origins: tuple[str, ...]  # modules those came from
    owner: str | None  # their lowest common module, as an instance path ("" is the model itself); None: not attributed
    traced_by: TracedBy
    milliseconds: float  # a run: the median over the runs; of one with a body, without the kernels in the body
    calls: int  # a run


class ModuleTime(msgspec.Struct, frozen=True):
    """One module of the source model; the times of a run."""

    path: str  # instance path; "" is the model itself
    tag: str
    self_ms: float  # in kernels it owns
    total_ms: float  # with every module below it
    kernels: int  # that it owns
    calls: int  # of kernels it owns, a run
    share: float  # of the time in kernels that total_ms is, 0 to 1


class Slice(msgspec.Struct, frozen=True):
    """One call of a kernel on the time line of one run."""

    kernel: int  # place in `ProfiledModel.kernels`
    start_us: float  # since the run began
    duration_us: float  # of one with a body, the whole: the slices of the kernels in the body lie within


class ProfiledModel(msgspec.Struct, frozen=True):
    """One file, profiled."""

    path: str | None
    label: str  # short name for tables
    nodes: int  # compute nodes of the file
    runs: int
    plain_ms: float  # a whole run without the profiler, median
    wall_ms: float  # a whole run, median, as the runtime's profile has it: writing the profile down is in it
    kernel_ms: float  # in kernels, a run: the sum of their medians
    attributed_ms: float  # in kernels that belong to a module or to the model itself
    kernels: tuple[KernelTime, ...]  # in the order they run
    modules: tuple[ModuleTime, ...]  # by path, parents before children; parents without kernels of their own too
    timeline: tuple[Slice, ...]  # of the run whose time is the median
    notes: tuple[str, ...] = ()

    @property
    def attributed(self) -> float:
        """The attributed share of the time in kernels, 0 to 1."""
        return self.attributed_ms / self.kernel_ms if self.kernel_ms else 1.0


class Profile(Record, frozen=True, tag="profile"):
    """One or more files, profiled under the same settings on the same inputs."""

    title = "a profile"
    environment: Environment
    options: dict[str, Any]  # threads, provider, level, sizes, seed, runs
    models: tuple[ProfiledModel, ...]
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()
