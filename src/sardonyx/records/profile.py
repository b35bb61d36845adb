"""The record of `profile`: the time of kernels and modules."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


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
