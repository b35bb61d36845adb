"""A tree of modules as a picture: a bar for every module, as wide as what it has, with those below it under it.

An icicle and not a treemap: modules keep their order and their depth, all widths are compared along one line, and names
stand in the bars. Panels share one scale, so that what became less is narrower, and one set of colours: the kinds of
modules that have most themselves have one each, named under the panels; all others are grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg
from sardonyx.reporting.profile import first_kernels, kinds, ms, share

WIDTH, LEFT, RIGHT, TOP = 960, 24, 24, 76
HEADER, ROW, GAP = 28, 22, 26  # of a panel; the height of a bar; between panels
DEEPEST = 24  # rows; what lies deeper is seen in the text
NARROWEST = 0.4  # of a bar that is drawn at all
COLUMNS = 4  # of the legend
_SPAN = WIDTH - LEFT - RIGHT
_STYLE = """
.sardonyx .bar { fill: var(--own); fill-opacity: 0.46; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .other { fill: var(--soft); fill-opacity: 0.2; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .nobody { fill: var(--soft); fill-opacity: 0.5; stroke: var(--paper); }
.sardonyx .label { font-size: 12px; pointer-events: none; }
.sardonyx .file { font-weight: 600; }
"""


@dataclass(frozen=True, slots=True)
class Amount:
    """What one module has."""

    path: str
    kind: str  # its class, where known
    own: float
    total: float  # with every module below it
    hover: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One file: its modules, siblings in the order they are drawn."""

    label: str
    about: str
    modules: Sequence[Amount]
    whole: float
    rest: float = 0.0  # of the whole: what belongs to no module
    rest_hover: str = ""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One module at its place."""

    module: Amount
    depth: int
    start: float


def icicle(
    panels: Sequence[Panel],
    title: str,
    about: str,
    colors: Mapping[str, int] | None = None,
    *,
    narrowest: float = NARROWEST,
    deepest: int = DEEPEST,
) -> svg.Picture:
    """All panels on one scale.

    Args:
        panels: From the top.
        title: What is shown.
        about: How to read it.
        colors: The number of a colour by family; None: of those families that have most in these panels.
        narrowest: Width of the narrowest bar that is drawn.
        deepest: Rows.
    """
    most = max((panel.whole for panel in panels), default=0.0) or 1.0
    colors = families(each for panel in panels for each in panel.modules) if colors is None else colors
    body: list[str] = []
    y = TOP
    for panel in panels:
        bars = list(_bars(panel, deepest))
        body.append(svg.text(LEFT, y + 16, panel.label, "file"))
        body.append(svg.text(WIDTH - RIGHT, y + 16, panel.about, "soft", anchor="end"))
        y += HEADER
        for bar in bars:
            body += _drawn(bar, y, _SPAN / most, colors, narrowest)
        body += _nobody(panel, y, _SPAN / most)
        y += ROW * (1 + max((bar.depth for bar in bars), default=0)) + GAP
    body += _legend(colors, y)
    y += 20 * -(-len(colors) // COLUMNS) + 8
    return svg.Picture("icicle", WIDTH, y, title, about, body, _STYLE)


def families(modules: Iterable[Amount]) -> dict[str, int]:
    """Colours of the families that have most themselves; what only holds others is wide enough for its name."""
    had: dict[str, float] = {}
    for module in modules:
        name = family(module.path, module.kind)
        had[name] = had.get(name, 0.0) + module.own
    most = sorted((name for name in had if had[name] > 0), key=lambda name: (-had[name], name))
    return {name: place for place, name in enumerate(most[: len(svg.COLORS)])}


def family(path: str, kind: str) -> str:
    """What modules of one colour have in common: their class, or their name where that is not known."""
    above, _dot, name = path.rpartition(".")
    return kind or (f"{above.rpartition('.')[2]}.*".lstrip(".") if name.isdecimal() else name) or "(model)"


def _bars(panel: Panel, deepest: int) -> Iterator[_Bar]:
    """Every module from left to right, parents before children."""
    children = _children(panel.modules)
    stack = [_Bar(module, 0, 0.0) for module in children.get(None, ())]
    while stack:
        bar = stack.pop()
        yield bar
        at = bar.start
        below: list[_Bar] = []
        for child in children.get(bar.module.path, ()):
            below.append(_Bar(child, bar.depth + 1, at))
            at += child.total
        stack += reversed(below) if bar.depth + 1 < deepest else ()


def _children(modules: Sequence[Amount]) -> dict[str | None, list[Amount]]:
    """Modules by the nearest one above them that is known; under None those that have none."""
    known = {module.path for module in modules}
    found: dict[str | None, list[Amount]] = {}
    for module in modules:
        above: str | None = module.path
        while above:
            above = above.rpartition(".")[0]
            if above in known:
                break
        found.setdefault(above if module.path and above in known else None, []).append(module)
    return found


def _legend(colors: Mapping[str, int], top: int) -> list[str]:
    parts: list[str] = []
    for place, (name, color) in enumerate(colors.items()):
        x, y = LEFT + place % COLUMNS * (_SPAN // COLUMNS), top + 20 * (place // COLUMNS)
        swatch = svg.rect(x, y - 10, 14, 14, "bar")
        parts.append(svg.group(color, [swatch, svg.text(x + 20, y + 1, name, "soft", longest=30)]))
    return parts


def _drawn(bar: _Bar, top: int, scale: float, colors: Mapping[str, int], narrowest: float) -> list[str]:
    width = bar.module.total * scale
    if width < narrowest:
        return []
    x, y = LEFT + bar.start * scale, top + bar.depth * ROW
    color = colors.get(family(bar.module.path, bar.module.kind))
    parts = [svg.rect(x, y, width, ROW - 1, "other" if color is None else "bar", hover=bar.module.hover)]
    label = _label(bar.module, width)
    if label:
        parts.append(svg.text(x + 5, y + 15, label, "label"))
    return [svg.group(color or 0, parts)]


def _label(module: Amount, width: float) -> str:
    """The most that fits: name and kind, or the name; nothing where it would have to be cut."""
    name = module.path.rpartition(".")[2]
    for text in (f"{name} {module.kind}".strip(), name or module.kind or "(model)"):
        if text and svg.breadth(formatting.visible(text)) + 8 <= width:
            return text
    return ""


def _nobody(panel: Panel, top: int, scale: float) -> list[str]:
    """What belongs to no module, at the right of what does."""
    if panel.rest * scale < NARROWEST:
        return []
    x = LEFT + (panel.whole - panel.rest) * scale
    return [svg.rect(x, top, panel.rest * scale, ROW - 1, "nobody", hover=panel.rest_hover)]


# Where the time goes as a picture: the module tree of every file, each bar as wide as its time.


def icicle_svg(found: Profile, title: str) -> str:
    """The picture, as the text of an SVG file."""
    about = "Time in kernels by module; what a module spends itself is where nothing stands under it"
    return icicle([_panel(model) for model in found.models], title, about).file()


def _panel(model: ProfiledModel) -> Panel:
    rest = model.kernel_ms - model.attributed_ms
    return Panel(
        model.label,
        f"{ms(model.kernel_ms)} ms in kernels, {share(model.attributed)} of it with a module",
        list(_amounts(model)),
        model.kernel_ms,
        rest,
        f"not attributed: {ms(rest)} ms ({share(rest / model.kernel_ms if model.kernel_ms else 0.0)})",
    )


def _amounts(model: ProfiledModel) -> Iterator[Amount]:
    """Modules in the order in which they first run."""
    first, known = first_kernels(model), kinds(model)
    for module in sorted(model.modules, key=lambda each: first.get(each.path, len(first))):
        kind = known[module.path]
        part = share(module.total_ms / model.kernel_ms if model.kernel_ms else 0.0)
        times = f"{ms(module.total_ms)} ms ({part}), {ms(module.self_ms)} ms of it itself"
        hover = f"{module.path or '(model)'} {kind}: {times}, {formatting.plural(module.kernels, 'kernel')}"
        yield Amount(module.path, kind, module.self_ms, module.total_ms, hover)
