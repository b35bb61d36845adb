"""A Profile as a trace for ui.perfetto.dev or chrome://tracing: one run of each file, kernels inside their modules.

Slices of one track must nest, or viewers drop them. So a module's slice goes from the first kernel of a stretch in it
to the last; it ends when a kernel of another module runs, and begins anew when its own come back. Times are whole
nanoseconds while they are compared, so that no rounding makes two slices overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.reporting import formatting
from sardonyx.reporting.profile import kinds

TRACK = 1  # of each file; its process is the file


@dataclass(slots=True)
class _Open:
    """A slice that has begun: of a module, or of a kernel whose body may run kernels of its own."""

    name: str
    category: str
    start: int
    end: int
    arguments: dict[str, Any]
    path: str | None  # of the module; of a kernel the module it belongs to
    module: bool = True
    inner: list[_Open] = field(default_factory=list["_Open"])


def trace(found: Profile) -> bytes:
    """The trace as JSON in Chrome's trace event format."""
    events = [event for number, model in enumerate(found.models, 1) for event in _file(number, model)]
    about = {key: str(value) for key, value in found.options.items()}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})


def _file(number: int, model: ProfiledModel) -> Iterator[dict[str, Any]]:
    for what, name in (("process_name", model.label), ("thread_name", "modules and kernels")):
        yield {"ph": "M", "pid": number, "tid": TRACK, "name": what, "args": {"name": formatting.visible(name)}}
    yield {"ph": "M", "pid": number, "tid": TRACK, "name": "process_sort_index", "args": {"sort_index": number}}
    for each in _slices(model):
        yield {
            "ph": "X",
            "pid": number,
            "tid": TRACK,
            "name": formatting.visible(each.name),
            "cat": each.category,
            "ts": each.start / 1000,
            "dur": (each.end - each.start) / 1000,
            "args": each.arguments,
        }


def _slices(model: ProfiledModel) -> Iterator[_Open]:
    """Every slice of a file, outer ones before those in them."""
    modules = _Modules(model)
    waiting = [iter(modules.around(_nested(model), None))]
    while waiting:
        one = next(waiting[-1], None)
        if one is None:
            waiting.pop()
            continue
        yield one
        if not one.module:
            waiting.append(iter(modules.around(one.inner, one.path)))


def _nested(model: ProfiledModel) -> list[_Open]:
    """The kernels' slices, those in a body inside that of their kernel; one that overlaps another begins after it."""
    top: list[_Open] = []
    open_ones: list[_Open] = []
    order = sorted(model.timeline, key=lambda each: (each.start_us, -each.duration_us))
    for each in order:
        start = round(1000 * each.start_us)
        end = round(1000 * (each.start_us + each.duration_us))
        while open_ones and not (start < open_ones[-1].end and end <= open_ones[-1].end):
            open_ones.pop()
        siblings = open_ones[-1].inner if open_ones else top
        start = max(start, siblings[-1].end if siblings else open_ones[-1].start if open_ones else start)
        siblings.append(_kernel(model, each.kernel, start, max(start, end)))
        open_ones.append(siblings[-1])
    return top


def _kernel(model: ProfiledModel, place: int, start: int, end: int) -> _Open:
    kernel = model.kernels[place]
    arguments = {
        "operator": formatting.visible(kernel.op_type),
        "module": None if kernel.owner is None else formatting.visible(kernel.owner),
        "nodes": [formatting.visible(node) for node in kernel.nodes],
        "traced_by": kernel.traced_by.value,
        "median_ms": kernel.milliseconds,
    }
    category = "kernel" if kernel.owner is not None else "kernel,not attributed"
    name = f"{kernel.op_type} {kernel.name}".strip()
    return _Open(name, category, start, end, arguments, kernel.owner, module=False)


class _Modules:
    """Slices of modules around those of kernels."""

    def __init__(self, model: ProfiledModel) -> None:
        self._known = {module.path: module for module in model.modules}
        self._kinds = kinds(model)

    def around(self, kernels: Sequence[_Open], within: str | None) -> list[_Open]:
        """The kernels of one stretch in order, each after the slices of modules that begin with it.

        Args:
            kernels: that follow one another.
            within: the module whose slice is open around all of them; None: none is.
        """
        outer = self._steps(within)
        shown: list[_Open] = []
        open_ones: list[_Open] = []
        for kernel in kernels:
            steps = self._steps(kernel.path)
            inner = [step for step in steps if step not in outer]
            pairs = zip(open_ones, inner, strict=False)
            kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0].path == pair[1], pairs))
            del open_ones[kept:]
            for path in inner[kept:]:
                begun = self._slice(path, kernel.start)
                open_ones.append(begun)
                shown.append(begun)
            for each in open_ones:
                each.end = kernel.end
            shown.append(kernel)
        return shown

    def _steps(self, path: str | None) -> list[str]:
        """The modules from the model down to this one, as far as they are known."""
        if path is None:
            return []
        ends = [at for at, letter in enumerate(path) if letter == "."]
        prefixes = ["", *(path[:end] for end in ends), *([path] if path else [])]
        return [prefix for prefix in prefixes if prefix in self._known]

    def _slice(self, path: str, start: int) -> _Open:
        module = self._known[path]
        kind, name = self._kinds[path], path.rpartition(".")[2]
        shown = f"{name} ({kind})" if name and kind and kind != name else name or kind or "(model)"
        arguments = {
            "path": formatting.visible(path),
            "tag": formatting.visible(module.tag),
            "median_self_ms": module.self_ms,
            "median_total_ms": module.total_ms,
        }
        return _Open(shown, "module", start, start, arguments, path)
