"""A tree of modules as an icicle plot: a bar for every module, as wide as its total, above the modules below it.

Unlike in a treemap, modules keep their order and depth, all widths are compared along one line, and names fit into the
bars. Panels share one scale, so that a smaller module is narrower, and one set of colours: the kinds of modules with
the largest own amounts have a colour each, listed under the panels; all others are grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg
from sardonyx.reporting.profile import first_kernels, kinds, ms, part_of, share

WIDTH, LEFT, RIGHT, TOP = 960, 24, 24, 76
HEADER, ROW, GAP = 28, 22, 26  # of a panel; the height of a bar; between panels
DEEPEST = 24  # rows
NARROWEST = 0.4  # width of a bar that is drawn
COLUMNS = 4  # of the legend
_SPAN = WIDTH - LEFT - RIGHT
_STYLE = """
.sardonyx .bar { fill: var(--own); fill-opacity: 0.46; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .other { fill: var(--soft); fill-opacity: 0.2; stroke: var(--paper); stroke-width: 0.6; }
.sardonyx .nobody { fill: var(--soft); fill-opacity: 0.5; stroke: var(--paper); }
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


class _Bar(Struct, frozen=True):
    """The position of one module."""

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
    """Return all panels on one scale.

    Args:
        panels: From the top.
        title: What is shown.
        about: How to read it.
        colors: The number of a colour by family; None: the families with the largest amounts in these panels.
        narrowest: Width of the narrowest bar that is drawn.
        deepest: Rows.
    """
    most = max((panel.whole for panel in panels), default=0.0) or 1.0
    colors = families(module for panel in panels for module in panel.modules) if colors is None else colors
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


def _bars(panel: Panel, deepest: int) -> Iterator[_Bar]:
    """Yield every module from left to right, parents before children."""
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
    """Return modules by the nearest listed one above them, or under None."""
    paths = {module.path for module in modules}
    children: dict[str | None, list[Amount]] = {}
    for module in modules:
        above: str | None = module.path
        while above:
            above = above.rpartition(".")[0]
            if above in paths:
                break
        children.setdefault(above if module.path and above in paths else None, []).append(module)
    return children


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
    """Return the longest label that fits: name and kind, the name, or nothing."""
    name = module.path.rpartition(".")[2]
    for text in (f"{name} {module.kind}".strip(), name or module.kind or "(model)"):
        if text and svg.breadth(formatting.visible(text)) + 8 <= width:
            return text
    return ""


def _nobody(panel: Panel, top: int, scale: float) -> list[str]:
    """Return the bar of the rest that belongs to no module, on the right."""
    if panel.rest * scale < NARROWEST:
        return []
    x = LEFT + (panel.whole - panel.rest) * scale
    return [svg.rect(x, top, panel.rest * scale, ROW - 1, "nobody", hover=panel.rest_hover)]


# A Profile as an icicle plot: the module tree of every file, each bar as wide as its time.


def icicle_svg(profile: Profile, title: str) -> str:
    """Return the picture as the text of an SVG file."""
    about = "Time in kernels by module; the part without a bar below it is the module's own"
    return icicle([_panel(model) for model in profile.models], title, about).file()


def _panel(model: ProfiledModel) -> Panel:
    rest = model.kernel_ms - model.attributed_ms
    return Panel(
        model.label,
        f"{ms(model.kernel_ms)} ms in kernels, {share(model.attributed)} of it with a module",
        list(_amounts(model)),
        model.kernel_ms,
        rest,
        f"not attributed: {ms(rest)} ms ({share(part_of(rest, model))})",
    )


def _amounts(model: ProfiledModel) -> Iterator[Amount]:
    """Yield modules in the order in which they first run."""
    first, classes = first_kernels(model), kinds(model)
    for module in sorted(model.modules, key=lambda module: first.get(module.path, len(first))):
        kind = classes[module.path]
        times = (
            f"{ms(module.total_ms)} ms ({share(part_of(module.total_ms, model))}), {ms(module.self_ms)} ms of it itself"
        )
        hover = f"{module.path or '(model)'} {kind}: {times}, {formatting.plural(module.kernels, 'kernel')}"
        yield Amount(module.path, kind, module.self_ms, module.total_ms, hover)
