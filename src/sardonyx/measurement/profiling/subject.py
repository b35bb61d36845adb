"""One model under the runtime's profiler, and what its profile comes to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from sardonyx import provenance as p
from sardonyx.errors import RuntimeFailure
from sardonyx.ir import origins
from sardonyx.ir.tagged_model import Tagged
from sardonyx.measurement.profiling import steps, summing
from sardonyx.measurement.profiling.events import MOST_EVENTS, Run, match, read
from sardonyx.measurement.profiling.kernel_origins import Trace, through, trace
from sardonyx.records.profile import KernelTime, ModuleTime, Slice
from sardonyx.runtime.timed import Level, Settings, Timed, weights_beside
from sardonyx.runtime.values import Feeds

_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")  # domains of kernels on values in another layout
_UNSAVED = "the provider does not tell which graph it runs: kernels are traced by their names alone"
_UNTAGGED = "nothing in the file tells of modules: all time counts to the model itself"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be profiled."""

    tagged: Tagged
    source: Path | onnx.ModelProto
    feeds: Feeds
    settings: Settings
    folder: Path  # for temporary files

    def plain(self) -> Callable[[], object]:
        """A run without the profiler."""
        return Timed(self.source, self.settings).ready(self.feeds)


@dataclass(frozen=True, slots=True)
class Found:
    """A profile joined to the file."""

    runs: int
    wall_ms: float
    kernels: tuple[KernelTime, ...]
    modules: tuple[ModuleTime, ...]
    timeline: tuple[Slice, ...]
    notes: tuple[str, ...]


class Profiled:
    """A model loaded with the profiler on."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        optimized = subject.folder / "optimized.onnx"
        profile = subject.folder / "profile"
        self._notes: list[str] = []
        self._graph: steps.Steps | None = None
        try:
            self._session = saving(subject.source, subject.settings, optimized, profile)
            self._graph = steps.as_run(optimized)
        except RuntimeFailure:  # a provider that compiles whole pieces of the graph cannot save them
            self._session = Timed(subject.source, subject.settings, profile=profile)
            self._notes.append(_UNSAVED)
        self.run = self._session.ready(subject.feeds)

    @property
    def room(self) -> int:
        """How many runs the runtime's profile has room for."""
        graph = self._graph or steps.of_file(self.subject.tagged.model.graph)
        return MOST_EVENTS // (len(graph.steps) + 2)

    def joined(self, runs: int) -> Found:
        """What the last runs came to, by kernel and by module; the model is not run any more."""
        profiled = read(self._session.end_profile())[-runs:]
        del self._session, self.run  # tracing may have to load the model anew
        graph = self._graph or _of_calls(profiled)
        matched = [(run, matches) for run in profiled if (matches := match(run, graph)) is not None]
        if not matched:
            raise RuntimeFailure("ONNX Runtime's profile does not fit the graph that it ran")
        places, kernels = summing.kernels(matched, self._traces(graph))
        by_time = sorted(matched, key=lambda each: each[0].duration)
        middle, matches = by_time[len(by_time) // 2]
        return Found(
            runs=len(matched),
            wall_ms=middle.duration / 1000,
            kernels=kernels,
            modules=summing.modules(kernels, self.subject.tagged.hierarchy),
            timeline=summing.timeline(middle, matches, places),
            notes=(*self._notes, *self._said(len(profiled) - len(matched))),
        )

    def _traces(self, graph: steps.Steps) -> dict[steps.GraphStep, Trace]:
        """Through the graph before the layouts were changed, where they were: there values still have their names."""
        file = steps.of_file(self.subject.tagged.model.graph)
        if not any(step.domain in _LAYOUTS for step in graph.steps):
            return trace(graph, file)
        settings = self.subject.settings
        optimized = self.subject.folder / "before.onnx"
        saving(self.subject.source, Settings(settings.threads, settings.provider, Level.EXTENDED), optimized)
        before = steps.as_run(optimized)
        return through(trace(graph, before), trace(before, file))

    def _said(self, lost: int) -> Iterator[str]:
        if lost:
            yield f"{lost} runs were left out, since the runtime's profile of them is not whole"
        if {origins.evidence(node) for node in self.subject.tagged.model.graph} <= {None, p.Evidence.NAMES}:
            yield _UNTAGGED


def saving(source: Path | onnx.ModelProto, settings: Settings, optimized: Path, profile: Path | None = None) -> Timed:
    """The model loaded, and its graph saved as the runtime optimized it.

    The weights go nowhere, where systems have such a place: nobody reads them, and they may be gigabytes.
    """
    with contextlib.suppress(OSError, NotImplementedError):
        weights_beside(optimized).symlink_to(os.devnull)
    return Timed(source, settings, profile=profile, optimized=optimized)


def _of_calls(runs: list[Run]) -> steps.Steps:
    """The steps of a graph of which only the calls are known."""
    calls = runs[0].calls if runs else ()
    return steps.Steps([steps.GraphStep(call.name, call.op_type, "", (), (), {}) for call in calls], {})
