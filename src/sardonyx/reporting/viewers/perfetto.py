"""A Profile as a trace for ui.perfetto.dev or chrome://tracing: one run of each file, kernels inside their modules.

Slices of one track must nest, or viewers drop them. So a module's slice goes from the first to the last of its
consecutive kernels; it ends when a kernel of another module runs, and a new one begins when its own continue. Times are
compared as whole nanoseconds, so that rounding never makes two slices overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.reporting import formatting
from sardonyx.reporting.profile import kinds

TRACK = 1  # of each file; its process is the file


class _Slice(Struct):
    """A slice of a module, or of a kernel, whose body may run further kernels."""

    name: str
    category: str
    start: int
    end: int
    arguments: dict[str, Any]
    path: str | None  # of the module, or of the module that a kernel belongs to
    module: bool = True
    inner: list[_Slice] = field(default_factory=list["_Slice"])


def trace(profile: Profile) -> bytes:
    """Return the trace as JSON in Chrome's trace event format."""
    events = [event for number, model in enumerate(profile.models, 1) for event in _file(number, model)]
    about = {key: str(value) for key, value in profile.options.items()}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})


def _file(number: int, model: ProfiledModel) -> Iterator[dict[str, Any]]:
    for what, name in (("process_name", model.label), ("thread_name", "modules and kernels")):
        yield {"ph": "M", "pid": number, "tid": TRACK, "name": what, "args": {"name": formatting.visible(name)}}
    yield {"ph": "M", "pid": number, "tid": TRACK, "name": "process_sort_index", "args": {"sort_index": number}}
    for part in _slices(model):
        yield {
            "ph": "X",
            "pid": number,
            "tid": TRACK,
            "name": formatting.visible(part.name),
            "cat": part.category,
            "ts": part.start / 1000,
            "dur": (part.end - part.start) / 1000,
            "args": part.arguments,
        }


def _slices(model: ProfiledModel) -> Iterator[_Slice]:
    """Yield every slice of a file, outer ones before the ones in them."""
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


def _nested(model: ProfiledModel) -> list[_Slice]:
    """Return the slices of kernels, nested where a kernel runs others; overlapping ones are moved behind each other."""
    top: list[_Slice] = []
    open_ones: list[_Slice] = []
    for event in sorted(model.timeline, key=lambda event: (event.start_us, -event.duration_us)):
        start = round(1000 * event.start_us)
        end = round(1000 * (event.start_us + event.duration_us))
        while open_ones and not (start < open_ones[-1].end and end <= open_ones[-1].end):
            open_ones.pop()
        siblings = open_ones[-1].inner if open_ones else top
        start = max(start, siblings[-1].end if siblings else open_ones[-1].start if open_ones else start)
        siblings.append(_kernel(model, event.kernel, start, max(start, end)))
        open_ones.append(siblings[-1])
    return top


def _kernel(model: ProfiledModel, place: int, start: int, end: int) -> _Slice:
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
    return _Slice(name, category, start, end, arguments, kernel.owner, module=False)


class _Modules:
    """Adds the slices of modules around those of kernels."""

    def __init__(self, model: ProfiledModel) -> None:
        self._modules = {module.path: module for module in model.modules}
        self._kinds = kinds(model)

    def around(self, kernels: Sequence[_Slice], within: str | None) -> list[_Slice]:
        """Return consecutive kernels in order, each after the slices of modules that begin with it.

        Args:
            kernels: consecutive kernels.
            within: the module whose slice is open around all of them, or None.
        """
        outer = self._steps(within)
        shown: list[_Slice] = []
        open_ones: list[_Slice] = []
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
            for module in open_ones:
                module.end = kernel.end
            shown.append(kernel)
        return shown

    def _steps(self, path: str | None) -> list[str]:
        """Return the paths of the profiled modules from the model down to this one."""
        if path is None:
            return []
        ends = [at for at, letter in enumerate(path) if letter == "."]
        prefixes = ["", *(path[:end] for end in ends), *([path] if path else [])]
        return [prefix for prefix in prefixes if prefix in self._modules]

    def _slice(self, path: str, start: int) -> _Slice:
        module = self._modules[path]
        kind, name = self._kinds[path], path.rpartition(".")[2]
        shown = f"{name} ({kind})" if name and kind and kind != name else name or kind or "(model)"
        arguments = {
            "path": formatting.visible(path),
            "tag": formatting.visible(module.tag),
            "median_self_ms": module.self_ms,
            "median_total_ms": module.total_ms,
        }
        return _Slice(shown, "module", start, start, arguments, path)
