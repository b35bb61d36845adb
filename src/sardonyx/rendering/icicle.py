"""Where the time goes as a picture: a bar for every module, as wide as its time, with those below it under it.

Every file has a panel, all on one scale, so that what takes less time is narrower. The kinds of modules that take most
themselves have a colour each, the same in all panels and named under them; all others are grey.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sardonyx.profile_record import ModuleTime, Profile, ProfiledModel
from sardonyx.rendering import svg, words
from sardonyx.rendering.profile_figures import first_kernels, kinds, ms, share

WIDTH, LEFT, RIGHT, TOP = 960, 24, 24, 76
HEADER, ROW, GAP = 28, 22, 26  # of a panel; the height of a bar; between panels
DEEPEST = 24  # rows; what lies deeper is seen in the text
NARROWEST = 0.4  # of a bar that is drawn at all
LETTER = 6.9  # width of a character of a label, on the safe side
_SPAN = WIDTH - LEFT - RIGHT
COLUMNS = 4  # of the legend
_STYLE = """
.sardonyx .bar { fill: var(--own); fill-opacity: 0.3; stroke: var(--paper); stroke-width: 1; }
.sardonyx .pale { fill-opacity: 0.16; }
.sardonyx .other { fill: var(--soft); fill-opacity: 0.14; stroke: var(--paper); }
.sardonyx .nobody { fill: var(--soft); fill-opacity: 0.5; stroke: var(--paper); }
.sardonyx .label { font-size: 12px; pointer-events: none; }
"""


@dataclass(frozen=True, slots=True)
class _Look:
    """The number of a colour, and the kind of rectangle."""

    color: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Bar:
    """One module at its place."""

    module: ModuleTime
    kind: str  # its class, where known
    depth: int
    start_ms: float


def icicle_svg(found: Profile, title: str) -> str:
    """The picture, as the text of an SVG file."""
    longest = max((model.kernel_ms for model in found.models), default=0.0) or 1.0
    looks = _looks(found)
    body: list[str] = []
    y = TOP
    for model in found.models:
        bars = list(_bars(model))
        body.append(svg.text(LEFT, y + 16, model.label, "name"))
        body.append(svg.text(WIDTH - RIGHT, y + 16, _in_words(model), "soft", anchor="end"))
        y += HEADER
        for bar in bars:
            body += _drawn(bar, model, y, _SPAN / longest, looks)
        body += _nobody(model, y, _SPAN / longest)
        y += ROW * (1 + max((bar.depth for bar in bars), default=0)) + GAP
    body += _legend(looks, y)
    y += 20 * -(-len(looks) // COLUMNS) + 8
    about = "Time in kernels by module; what a module spends itself is where nothing stands under it"
    return svg.Picture("icicle", WIDTH, y, title, about, body, _STYLE).file()


def _in_words(model: ProfiledModel) -> str:
    return f"{ms(model.kernel_ms)} ms in kernels, {share(model.attributed)} of it with a module"


def _bars(model: ProfiledModel) -> Iterator[_Bar]:
    """Every module from left to right in the order in which they first run, parents before children."""
    children, first, known = _children(model), first_kernels(model), kinds(model)
    stack = [_Bar(module, known[module.path], 0, 0.0) for module in children.get(None, ())]
    while stack:
        bar = stack.pop()
        yield bar
        at = bar.start_ms
        below: list[_Bar] = []
        for child in sorted(children.get(bar.module.path, ()), key=lambda each: first.get(each.path, len(first))):
            below.append(_Bar(child, known[child.path], bar.depth + 1, at))
            at += child.total_ms
        stack += reversed(below) if bar.depth + 1 < DEEPEST else ()


def _children(model: ProfiledModel) -> dict[str | None, list[ModuleTime]]:
    """Modules by the nearest one above them that is known; under None those that have none."""
    known = {module.path for module in model.modules}
    found: dict[str | None, list[ModuleTime]] = {}
    for module in model.modules:
        above: str | None = module.path
        while above:
            above = above.rpartition(".")[0]
            if above in known:
                break
        found.setdefault(above if module.path and above in known else None, []).append(module)
    return found


def _looks(found: Profile) -> dict[str, _Look]:
    """How the kinds that take most time themselves are drawn; what only holds others is wide enough for its name."""
    spent: dict[str, float] = {}
    for model in found.models:
        known = kinds(model)
        for module in model.modules:
            family = _family(module.path, known[module.path])
            spent[family] = spent.get(family, 0.0) + module.self_ms
    most = sorted(spent, key=lambda family: (-spent[family], family))[: 2 * len(svg.COLORS)]
    colors = len(svg.COLORS)
    return {
        family: _Look(place % colors, "bar pale" if place >= colors else "bar") for place, family in enumerate(most)
    }


def _family(path: str, kind: str) -> str:
    """What modules of one colour have in common: their class, or their name where that is not known."""
    return kind or path.rpartition(".")[2] or "(model)"


def _legend(looks: dict[str, _Look], top: int) -> list[str]:
    parts: list[str] = []
    for place, (family, look) in enumerate(looks.items()):
        x, y = LEFT + place % COLUMNS * (_SPAN // COLUMNS), top + 20 * (place // COLUMNS)
        swatch = svg.rect(x, y - 10, 14, 14, look.kind)
        parts.append(svg.group(look.color, [swatch, svg.text(x + 20, y + 1, family, "soft", longest=30)]))
    return parts


def _drawn(bar: _Bar, model: ProfiledModel, top: int, scale: float, looks: Mapping[str, _Look]) -> list[str]:
    width = bar.module.total_ms * scale
    if width < NARROWEST:
        return []
    x, y = LEFT + bar.start_ms * scale, top + bar.depth * ROW
    look = looks.get(_family(bar.module.path, bar.kind), _Look(0, "other"))
    parts = [svg.rect(x, y, width, ROW - 1, look.kind, hover=_hover(bar, model))]
    label = _label(bar, width)
    if label:
        parts.append(svg.text(x + 5, y + 15, label, "label"))
    return [svg.group(look.color, parts)]


def _hover(bar: _Bar, model: ProfiledModel) -> str:
    module = bar.module
    part = share(module.total_ms / model.kernel_ms if model.kernel_ms else 0.0)
    times = f"{ms(module.total_ms)} ms ({part}), {ms(module.self_ms)} ms of it itself"
    return f"{module.path or '(model)'} {bar.kind}: {times}, {words.plural(module.kernels, 'kernel')}"


def _label(bar: _Bar, width: float) -> str:
    """The most that fits: name and kind, or the name; nothing where it would have to be cut."""
    name = bar.module.path.rpartition(".")[2]
    for text in (f"{name} {bar.kind}".strip(), name or bar.kind):
        if text and len(words.visible(text)) * LETTER + 8 <= width:
            return text
    return ""


def _nobody(model: ProfiledModel, top: int, scale: float) -> list[str]:
    """What belongs to no module, at the right of what does."""
    rest = model.kernel_ms - model.attributed_ms
    if rest * scale < NARROWEST:
        return []
    hover = f"not attributed: {ms(rest)} ms ({share(rest / model.kernel_ms)})"
    return [svg.rect(LEFT + model.attributed_ms * scale, top, rest * scale, ROW - 1, "nobody", hover=hover)]
