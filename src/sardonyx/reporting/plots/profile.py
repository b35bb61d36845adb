"""A profile as an icicle plot and as a trace for Perfetto."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from sardonyx.records.bench import KernelTime, ModuleTime, Profile, ProfiledModel
from sardonyx.records.provenance import lineage
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.plots import svg
from sardonyx.reporting.profile import first_kernels, kinds, ms, part_of, share

WIDTH, LEFT, RIGHT, TOP = 960, 24, 24, 76
HEADER, ROW, GAP = 28, 22, 26  # of a panel; the height of a bar; between panels
MAX_ROWS = 24  # rows
MIN_BAR_WIDTH = 0.4  # width of a bar that is drawn
COLUMNS = 4  # of the legend
_SPAN = WIDTH - LEFT - RIGHT
_STYLE = """
.sardonyx .bar { fill: var(--own); fill-opacity: 0.46; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .other { fill: var(--soft); fill-opacity: 0.2; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .no-module { fill: var(--soft); fill-opacity: 0.5; stroke: var(--paper); }
.sardonyx .label { font-size: 12px; pointer-events: none; }
.sardonyx .file { font-weight: 600; }
"""


class Amount(Struct, frozen=True):
    """The amount of one module."""

    path: str
    kind: str  # its class, "" if unknown
    own: float
    total: float  # with every module below it
    hover: str


class Panel(Struct, frozen=True):
    """One file: its modules, siblings in the order they are drawn."""

    label: str
    about: str
    modules: Sequence[Amount]
    whole: float
    rest: float = 0.0  # part of the whole that belongs to no module
    rest_hover: str = ""


def icicle(
    panels: Sequence[Panel],
    title: str,
    about: str,
    colors: Mapping[str, int] | None = None,
    *,
    narrowest: float = MIN_BAR_WIDTH,
    deepest: int = MAX_ROWS,
) -> svg.Picture:
    """Return all panels on one scale.

    Args:
        panels: From the top.
        title: What is shown.
        about: How to read it.
        colors: The number of a colour by family; None: the families with the largest amounts in these panels.
        narrowest: Width of the narrowest bar that is drawn.
        deepest: Rows.
    """
    scale = _SPAN / (max((panel.whole for panel in panels), default=0.0) or 1.0)
    colors = families(module for panel in panels for module in panel.modules) if colors is None else colors
    body, y = list[str](), TOP
    for panel in panels:
        body.append(svg.text(LEFT, y + 16, panel.label, "file"))
        body.append(svg.text(WIDTH - RIGHT, y + 16, panel.about, "soft", anchor="end"))
        y += HEADER
        lowest = 0
        for module, depth, start in _placed(panel.modules, deepest):
            lowest, width = max(lowest, depth), module.total * scale
            if width >= narrowest:
                color = colors.get(family(module.path, module.kind))
                x, top, kind = LEFT + start * scale, y + depth * ROW, "other" if color is None else "bar"
                parts = [svg.rect(x, top, width, ROW - 1, kind, hover=module.hover)]
                if label := _label(module, width):
                    parts.append(svg.text(x + 5, top + 15, label, "label"))
                body.append(svg.group(color or 0, parts))
        if (width := panel.rest * scale) >= MIN_BAR_WIDTH:  # what belongs to no module, on the right
            x = LEFT + (panel.whole - panel.rest) * scale
            body.append(svg.rect(x, y, width, ROW - 1, "no-module", hover=panel.rest_hover))
        y += ROW * (1 + lowest) + GAP
    for place, (name, color) in enumerate(colors.items()):
        x, top = LEFT + place % COLUMNS * (_SPAN // COLUMNS), y + 20 * (place // COLUMNS)
        swatch = svg.rect(x, top - 10, 14, 14, "bar")
        body.append(svg.group(color, [swatch, svg.text(x + 20, top + 1, name, "soft", longest=30)]))
    y += 20 * -(-len(colors) // COLUMNS) + 8
    return svg.Picture("icicle", WIDTH, y, title, about, body, _STYLE)


def families(modules: Iterable[Amount]) -> dict[str, int]:
    """Return the colours of the families with the largest own amounts."""
    totals: dict[str, float] = {}
    for module in modules:
        name = family(module.path, module.kind)
        totals[name] = totals.get(name, 0.0) + module.own
    most = sorted((name for name in totals if totals[name] > 0), key=lambda name: (-totals[name], name))
    return {name: place for place, name in enumerate(most[: len(svg.COLORS)])}


def family(path: str, kind: str) -> str:
    """Return what modules of one colour have in common: their class, or their name if the class is unknown."""
    above, _dot, name = path.rpartition(".")
    return kind or (f"{above.rpartition('.')[2]}.*".lstrip(".") if name.isdecimal() else name) or "(model)"


def _placed(modules: Sequence[Amount], deepest: int) -> Iterator[tuple[Amount, int, float]]:
    """Yield every module from left to right with its depth and where it starts, parents before children."""
    paths = {module.path for module in modules}
    children: dict[str | None, list[Amount]] = {}  # by the nearest listed module above them, or None
    for module in modules:
        above = next((path for path in lineage(module.path)[-2::-1] if path in paths), None)
        children.setdefault(above, []).append(module)
    stack = [(module, 0, 0.0) for module in children.get(None, ())]
    while stack:
        module, depth, at = stack.pop()
        yield module, depth, at
        below: list[tuple[Amount, int, float]] = []
        for child in children.get(module.path, ()):
            below.append((child, depth + 1, at))
            at += child.total
        stack += reversed(below) if depth + 1 < deepest else ()


def _label(module: Amount, width: float) -> str:
    name = module.path.rpartition(".")[2]
    for text in (f"{name} {module.kind}".strip(), name or module.kind or "(model)"):
        if text and svg.breadth(fmt.visible(text)) + 8 <= width:
            return text
    return ""


# A Profile as an icicle plot: the module tree of every file, each bar as wide as its time.


def icicle_svg(profile: Profile, title: str) -> str:
    """Return the picture as the text of an SVG file."""
    about = "Time in kernels by module; the part without a bar below it is the module's own"
    return icicle([_panel(model) for model in profile.models], title, about).file()


def _panel(model: ProfiledModel) -> Panel:
    first, classes = first_kernels(model), kinds(model)
    modules: list[Amount] = []
    for module in sorted(model.modules, key=lambda module: first.get(module.path, len(first))):  # as they first run
        kind, part = classes[module.path], share(part_of(module.total_ms, model))
        times = f"{ms(module.total_ms)} ms ({part}), {ms(module.self_ms)} ms of it itself"
        hover = f"{module.path or '(model)'} {kind}: {times}, {fmt.plural(module.kernels, 'kernel')}"
        modules.append(Amount(module.path, kind, module.self_ms, module.total_ms, hover))
    rest = model.kernel_ms - model.attributed_ms
    about = f"{ms(model.kernel_ms)} ms in kernels, {share(model.attributed)} of it with a module"
    unknown = f"not attributed: {ms(rest)} ms ({share(part_of(rest, model))})"
    return Panel(model.label, about, modules, model.kernel_ms, rest, unknown)


TRACK = 1  # of each file; its process is the file


class _Level(Struct):
    """The kernels that run directly in the file, or in the body of a kernel."""

    around: Sequence[str]  # modules whose slices are open around all of them
    end: float  # of the kernels themselves
    last: float  # the end of the last one
    # The open modules, each with where its slice starts.
    modules: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list[tuple[str, float, dict[str, Any]]])


def trace(profile: Profile) -> bytes:
    """Return the trace as JSON in Chrome's trace event format."""
    events = [event for number, model in enumerate(profile.models, 1) for event in _file(number, model)]
    about = {key: str(value) for key, value in profile.options.items()}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})


def _file(number: int, model: ProfiledModel) -> Iterator[dict[str, Any]]:
    for what, name in (("process_name", model.label), ("thread_name", "modules and kernels")):
        yield {"ph": "M", "pid": number, "tid": TRACK, "name": what, "args": {"name": fmt.visible(name)}}
    yield {"ph": "M", "pid": number, "tid": TRACK, "name": "process_sort_index", "args": {"sort_index": number}}
    yield from ({"ph": "X", "pid": number, "tid": TRACK, **part} for part in _slices(model))


def _slices(model: ProfiledModel) -> list[dict[str, Any]]:
    """Return the slices of kernels, nested where a kernel runs others, each after those of modules that begin with it.

    Kernels that overlap are moved behind each other.
    """
    profiled, classes = {module.path: module for module in model.modules}, kinds(model)

    def steps(path: str | None) -> list[str]:
        """Return the paths of the profiled modules from the model down to this one."""
        return [] if path is None else [above for above in lineage(path) if above in profiled]

    shown, levels = list[dict[str, Any]](), [_Level((), math.inf, -math.inf)]
    for event in sorted(model.timeline, key=lambda event: (event.start_us, -event.duration_us)):
        start, end = round(1000 * event.start_us), round(1000 * (event.start_us + event.duration_us))
        while not (start < levels[-1].end and end <= levels[-1].end):
            levels.pop()
        level, kernel = levels[-1], model.kernels[event.kernel]
        start = max(start, level.last)
        end = level.last = max(start, end)
        inner = [path for path in steps(kernel.owner) if path not in level.around]
        pairs = zip(level.modules, inner, strict=False)
        del level.modules[sum(1 for _ in itertools.takewhile(lambda pair: pair[0][0] == pair[1], pairs)) :]
        for path in inner[len(level.modules) :]:
            shown.append(_module_slice(profiled[path], classes[path], start))
            level.modules.append((path, start, shown[-1]))
        for _path, begin, module in level.modules:
            module["dur"] = (end - begin) / 1000
        shown.append(_kernel_slice(kernel, start, end))
        levels.append(_Level(steps(kernel.owner), end, start))
    return shown


def _slice(name: str, category: str, start: float, end: float, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a slice from one time to another, in nanoseconds."""
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"name": fmt.visible(name), "cat": category, **times, "args": arguments}


def _kernel_slice(kernel: KernelTime, start: float, end: float) -> dict[str, Any]:
    arguments = {
        "operator": fmt.visible(kernel.op_type),
        "module": None if kernel.owner is None else fmt.visible(kernel.owner),
        "nodes": [fmt.visible(node) for node in kernel.nodes],
        "traced_by": kernel.traced_by.value,
        "median_ms": kernel.milliseconds,
    }
    category = "kernel" if kernel.owner is not None else "kernel,not attributed"
    return _slice(f"{kernel.op_type} {kernel.name}".strip(), category, start, end, arguments)


def _module_slice(module: ModuleTime, kind: str, start: float) -> dict[str, Any]:
    name = module.path.rpartition(".")[2]
    shown = f"{name} ({kind})" if name and kind and kind != name else name or kind or "(model)"
    arguments = {
        "path": fmt.visible(module.path),
        "tag": fmt.visible(module.tag),
        "median_self_ms": module.self_ms,
        "median_total_ms": module.total_ms,
    }
    return _slice(shown, "module", start, start, arguments)
