"""`sardonyx.profile`: measure where a model spends its time, by the modules of the original network.

The file is run unchanged, with the runtime's optimizations on. No names or tags are added, because the runtime does not
merge nodes that differ in an attribute, and would run another graph than the one that users run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.inputs.at_size import at_size, dynamic_dims
from sardonyx.ir.io import to_proto
from sardonyx.ir.scopes import is_constant, scopes
from sardonyx.ir.tagged_model import Source, Tagged, distinct_labels, tagged
from sardonyx.measurement.entrants import listed_sources
from sardonyx.measurement.profiling.subject import Profiled, Subject
from sardonyx.measurement.sessions import settings_of
from sardonyx.records.environment import environment
from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.records.progress import Clock, Progress
from sardonyx.runtime.timed import Level
from sardonyx.runtime.values import Feeds
from sardonyx.temporary import temporary_folder

WARM_UP = 2  # runs that are not counted
MIN_RUNS, MAX_RUNS = 5, 100  # runs by default
FEWEST_SLOW = 3  # runs if five take longer than `SECONDS`
SECONDS = 3.0  # for the profiled runs of all files by default
PLAIN_SECONDS = 1.0  # for the runs without the profiler


def profile(
    files: Source | Sequence[Source],
    *,
    sizes: Mapping[str, int] | None = None,
    at: Sequence[Mapping[str, int]] = (),
    threads: int = 1,
    provider: str = "cpu",
    level: Level | str = Level.ALL,
    runs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Time the kernels of one or more models, and sum them by the modules of the original network.

    Args:
        files: Model files, `ModelProto`s or `onnx_ir.Model`s; several are run in turns on the same inputs.
        sizes: Sizes of dynamic dimensions by name; the others get default sizes.
        at: Further sizes, each of which adds a column for each file, such as prefill and decode of a decoder.
        threads: Threads within an operator.
        provider: Execution provider of the runtime: "cpu", "cuda" and so on.
        level: How far the runtime may optimize: "off", "basic", "extended", "layout" or "all".
        runs: The number of runs to take the median of; None runs for a few seconds.
        seed: Seed of the inputs.
        progress: Called with the phase and the fraction done.

    Raises:
        UsageError: There is no file, or a size, level or provider is unknown.
        RuntimeFailure: The runtime cannot load or run a model.
    """
    return profile_timed(
        files,
        sizes=sizes,
        at=at,
        threads=threads,
        provider=provider,
        level=level,
        runs=runs,
        seed=seed,
        progress=progress,
    )


def profile_timed(
    files: Source | Sequence[Source],
    *,
    sizes: Mapping[str, int] | None = None,
    at: Sequence[Mapping[str, int]] = (),
    threads: int = 1,
    provider: str = "cpu",
    level: Level | str = Level.ALL,
    runs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    plain_ms: Sequence[float] = (),
) -> Profile:
    """Profile models like `profile`; `plain_ms` are the times of a run of each that were measured before, if any."""
    settings = settings_of(threads, provider, level)
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs measure nothing", hint="ask for one at least")
    sources = listed_sources(files)
    if not sources:
        raise UsageError("there is no model to profile", hint="name one or more files")
    clock = Clock(progress)
    with temporary_folder() as folder:
        with clock.phase("load"):
            loaded = [tagged(source) for source in sources]
            points = [{**(sizes or {}), **point} for point in at or ({},)]
            subjects = [
                Subject(model, _loadable(model), feeds, settings, Path(tempfile.mkdtemp(dir=folder)))
                for point in points
                for model, feeds in zip(loaded, _feeds([each.model for each in loaded], point, seed), strict=True)
            ]
        with clock.phase("run plain"):
            plain = list(plain_ms) or _plain(subjects)
        with clock.phase("run profiled"):
            profiled = [Profiled(subject) for subject in subjects]
            done = _run([each.run for each in profiled], runs, min(each.capacity for each in profiled), clock.tell)
        with clock.phase("trace"):
            models = tuple(
                _model_record(subject, name, milliseconds, done)
                for subject, name, milliseconds in zip(profiled, _labels(loaded, at), plain, strict=True)
            )
    options: dict[str, Any] = {
        "threads": threads,
        "provider": provider,
        "level": settings.level.value,
        "sizes": dynamic_dims(loaded[0].model, sizes),
        **({"at": [dict(point) for point in at]} if at else {}),
        "seed": seed,
        "runs": done,
    }
    return Profile(environment(), options, models, {name: round(spent, 6) for name, spent in clock.seconds.items()})


def _plain(subjects: Sequence[Subject]) -> list[float]:
    """Return the milliseconds of a run of each model without the profiler; the models take turns."""
    ready = [subject.plain() for subject in subjects]
    times: list[list[float]] = [[] for _ in ready]
    ends = time.perf_counter() + PLAIN_SECONDS
    while len(times[0]) < WARM_UP + MIN_RUNS or (time.perf_counter() < ends and len(times[0]) < WARM_UP + MAX_RUNS):
        for run, seconds in zip(ready, times, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return [1000 * median(seconds[WARM_UP:]) for seconds in times]


def _run(ready: Sequence[Callable[[], object]], runs: int | None, capacity: int, progress: Progress) -> int:
    """Run all models in turns, so that other load affects them alike; return the number of counted runs of each."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        for run in ready:
            run()
    a_round = (time.perf_counter() - began) / WARM_UP
    fewest = MIN_RUNS if MIN_RUNS * a_round <= SECONDS else FEWEST_SLOW
    wanted = runs or max(fewest, min(MAX_RUNS, int(SECONDS / a_round)))
    wanted = max(1, min(wanted, capacity - WARM_UP))
    for done in range(wanted):
        for run in ready:
            run()
        progress("run profiled", (done + 1) / wanted)
    return wanted


def _model_record(profiled: Profiled, name: str, plain_ms: float, runs: int) -> ProfiledModel:
    joined, source = profiled.joined(runs), profiled.subject.tagged
    return ProfiledModel(
        path=None if source.path is None else source.name,
        label=name,
        nodes=sum(not is_constant(node) for scope in scopes(source.model) for node in scope.graph),
        runs=joined.runs,
        plain_ms=plain_ms,
        wall_ms=joined.wall_ms,
        kernel_ms=sum(kernel.milliseconds for kernel in joined.kernels),
        attributed_ms=sum(kernel.milliseconds for kernel in joined.kernels if kernel.owner is not None),
        kernels=joined.kernels,
        modules=joined.modules,
        timeline=joined.timeline,
        notes=joined.notes,
    )


def _feeds(models: Sequence[ir.Model], sizes: Mapping[str, int] | None, seed: int) -> list[Feeds]:
    """Return the first model's feeds for all models; inputs that only another model has are generated for it."""
    first = at_size(models[0], sizes, seed=seed)
    feeds = [first]
    for model in models[1:]:
        needed = {value.name for value in model.graph.inputs if not value.is_initializer()}
        own = {name: size for name, size in (sizes or {}).items() if name in dynamic_dims(model)}
        feeds.append(first if needed <= first.keys() else {**at_size(model, own, seed=seed), **first})
    return feeds


def _labels(models: Sequence[Tagged], at: Sequence[Mapping[str, int]]) -> list[str]:
    """Return short, distinct names of the columns: by size, by file, or by both."""
    names, sizes = (
        distinct_labels([model.name for model in models]),
        [" ".join(f"{dim}={size}" for dim, size in point.items()) for point in at],
    )
    if len(names) == 1 and sizes:
        return sizes
    return [f"{name} {size}".strip() for size in sizes or [""] for name in names]


def _loadable(model: Tagged) -> Path | onnx.ModelProto:
    return model.path if model.path is not None else to_proto(model.model)
