"""`sardonyx.profile`: where a model spends its time, by the modules of the network it came from.

The file itself is run, as it is and with the runtime's optimizations on: no names or tags are added, since nodes that
differ in an attribute are not merged by the runtime, and another graph would be measured than the one users run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir.io import to_proto
from sardonyx.ir.scopes import is_constant, scopes
from sardonyx.ir.tagged_model import Source, Tagged, tagged
from sardonyx.measurement.feeds import at_size, open_dims
from sardonyx.measurement.profiling.subject import Profiled, Subject
from sardonyx.records.environment import environment
from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.records.progress import Clock, Progress
from sardonyx.runtime.timed import Level, Settings
from sardonyx.runtime.values import Feeds

WARM_UP = 2  # runs that are not counted
FEWEST, MOST = 5, 100  # runs, where nobody says how many
SECONDS = 3.0  # for the profiled runs of all files, where nobody says how many
PLAIN_SECONDS = 1.0  # for those without the profiler


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
        files: model files, `ModelProto`s or `onnx_ir.Model`s; several are run in turns, on the same inputs.
        sizes: of dims that inputs leave open, by name; the others get a usual one.
        at: further sizes, of which each gives a column for each file: prefill and decode of a decoder, say.
        threads: that an operator may use.
        provider: of the runtime: "cpu", "cuda" and so on.
        level: how far the runtime may optimize: "off", "basic", "extended", "layout" or "all".
        runs: to take the median of; as many as a few seconds allow where None.
        seed: of the inputs.
        progress: told each phase and how much of it is done.

    Raises:
        UsageError: for no file, an unknown size, level or provider.
        RuntimeFailure: where the runtime does not take or run a model.
    """
    settings = Settings(threads, provider, _level(level))
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs measure nothing", hint="ask for one at least")
    sources: Sequence[Source] = files if _is_several(files) else [files]  # pyright: ignore[reportAssignmentType]
    if not sources:
        raise UsageError("there is no model to profile", hint="name one or more files")
    clock = Clock(progress)
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        with clock.phase("load"):
            found = [tagged(source) for source in sources]
            points = [{**(sizes or {}), **each} for each in at or ({},)]
            subjects = [
                Subject(each, _loadable(each), feeds, settings, Path(tempfile.mkdtemp(dir=folder)))
                for point in points
                for each, feeds in zip(found, _feeds([each.model for each in found], point, seed), strict=True)
            ]
        with clock.phase("run plain"):
            plain = _plain(subjects)
        with clock.phase("run profiled"):
            profiled = [Profiled(each) for each in subjects]
            done = _run([each.run for each in profiled], runs, min(each.room for each in profiled), clock.tell)
        with clock.phase("trace"):
            models = tuple(
                _answer(each, name, milliseconds, done)
                for each, name, milliseconds in zip(profiled, _labels(found, at), plain, strict=True)
            )
    options: dict[str, Any] = {
        "threads": threads,
        "provider": provider,
        "level": settings.level.value,
        "sizes": _sizes(found[0].model, sizes),
        **({"at": [dict(each) for each in at]} if at else {}),
        "seed": seed,
        "runs": done,
    }
    return Profile(environment(), options, models, {name: round(each, 6) for name, each in clock.seconds.items()})


def _plain(subjects: Sequence[Subject]) -> list[float]:
    """Milliseconds of a run without the profiler, the models in turns; they are not kept in memory."""
    ready = [subject.plain() for subject in subjects]
    times: list[list[float]] = [[] for _ in ready]
    ends = time.perf_counter() + PLAIN_SECONDS
    while len(times[0]) < WARM_UP + FEWEST or (time.perf_counter() < ends and len(times[0]) < WARM_UP + MOST):
        for run, seconds in zip(ready, times, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return [1000 * median(seconds[WARM_UP:]) for seconds in times]


def _run(ready: Sequence[Callable[[], object]], runs: int | None, room: int, tell: Progress) -> int:
    """Run all in turns, so that whatever the machine does hits them alike; how many runs each had to be counted."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        for run in ready:
            run()
    a_round = (time.perf_counter() - began) / WARM_UP
    wanted = runs or max(FEWEST, min(MOST, int(SECONDS / a_round)))
    wanted = max(1, min(wanted, room - WARM_UP))
    for done in range(wanted):
        for run in ready:
            run()
        tell("run profiled", (done + 1) / wanted)
    return wanted


def _answer(profiled: Profiled, name: str, plain_ms: float, runs: int) -> ProfiledModel:
    found, source = profiled.joined(runs), profiled.subject.tagged
    return ProfiledModel(
        path=None if source.path is None else source.name,
        label=name,
        nodes=sum(not is_constant(node) for scope in scopes(source.model) for node in scope.graph),
        runs=found.runs,
        plain_ms=plain_ms,
        wall_ms=found.wall_ms,
        kernel_ms=sum(kernel.milliseconds for kernel in found.kernels),
        attributed_ms=sum(kernel.milliseconds for kernel in found.kernels if kernel.owner is not None),
        kernels=found.kernels,
        modules=found.modules,
        timeline=found.timeline,
        notes=found.notes,
    )


def _feeds(models: Sequence[ir.Model], sizes: Mapping[str, int] | None, seed: int) -> list[Feeds]:
    """The first model's feeds for all; what another takes beside those is drawn for it."""
    first = at_size(models[0], sizes, seed=seed)
    fed = [first]
    for model in models[1:]:
        needed = {value.name for value in model.graph.inputs if not value.is_initializer()}
        own = {name: size for name, size in (sizes or {}).items() if name in open_dims(model)}
        fed.append(first if needed <= first.keys() else {**at_size(model, own, seed=seed), **first})
    return fed


def _sizes(model: ir.Model, sizes: Mapping[str, int] | None) -> dict[str, int]:
    return open_dims(model) | dict(sizes or {})


def _labels(found: Sequence[Tagged], at: Sequence[Mapping[str, int]]) -> list[str]:
    """Short names that tell the columns apart: by size, by file, or by both."""
    names, places = _file_names(found), [" ".join(f"{dim}={size}" for dim, size in each.items()) for each in at]
    if len(names) == 1 and places:
        return places
    return [f"{name} {place}".strip() for place in places or [""] for name in names]


def _file_names(found: Sequence[Tagged]) -> list[str]:
    names = [each.path.name if each.path is not None else each.name for each in found]
    if len(set(names)) == len(names):
        return names
    full = [each.name for each in found]
    return full if len(set(full)) == len(full) else [f"{name} ({place})" for place, name in enumerate(full, 1)]


def _loadable(found: Tagged) -> Path | onnx.ModelProto:
    return found.path if found.path is not None else to_proto(found.model)


def _level(level: Level | str) -> Level:
    try:
        return Level(level)
    except ValueError as error:
        raise UsageError(f"there is no level {level!r}", hint=f"there are {', '.join(Level)}") from error


def _is_several(files: Source | Sequence[Source]) -> bool:
    return not isinstance(files, (str, os.PathLike, onnx.ModelProto, ir.Model))
