"""The error that is left as a picture: the second model gets the first model's values at one border after another."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.location import Location
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg

WIDTH, LEFT, RIGHT = 960, 64, 24
TOP, PLOT, FOOT = 92, 190, 56
_SPAN = WIDTH - LEFT - RIGHT
_BASE = TOP + PLOT
_STYLE = """
.sardonyx .left { fill: var(--own); fill-opacity: 0.18; stroke: var(--own); stroke-width: 1.25; }
.sardonyx .first { stroke: var(--own); stroke-width: 1; stroke-dasharray: 2 4; }
"""


def substitution_plot(location: Location) -> svg.Picture:
    """Return the picture for a file or for the page."""
    return svg.Picture(
        "substitutions",
        WIDTH,
        _BASE + FOOT,
        f"Error that is left: {location.second.name}",
        "Share of the squared error of the outputs if the second model gets the first model's values up to a border.",
        [svg.group(0, _drawn(location))],
        style=_STYLE,
        description=". ".join(_hover(location, place) for place in range(len(location.substitutions))),
    )


def _drawn(location: Location) -> Iterator[str]:
    for percent in range(0, 101, 25):
        y = _BASE - PLOT * percent / 100
        yield svg.line(LEFT, y, WIDTH - RIGHT, y, "rule" if percent else "axis")
        yield svg.text(LEFT - 8, y + 4, f"{percent} %", "soft", anchor="end")
    points = [_point(location, place) for place in range(len(location.substitutions))]
    path = "".join(f"L{svg.at(x)} {svg.at(y)}" for x, y in points)
    yield f'<path class="left" d="M{LEFT} {_BASE}{path}L{svg.at(points[-1][0])} {_BASE}Z"/>'
    yield from _first(location)
    for place, (x, y) in enumerate(points):
        yield svg.dot(x, y, radius=3.5, hover=_hover(location, place))
    for place in sorted({0, location.borders // 2, location.borders}):
        x = LEFT + _SPAN * place / location.borders
        yield svg.line(x, _BASE, x, _BASE + 4, "axis")
        yield svg.text(x, _BASE + 18, formatting.count(place), "soft", anchor="end" if place else "start")
    yield svg.text(
        LEFT + _SPAN / 2, _BASE + 42, "border values in the order they are computed", "soft", anchor="middle"
    )


def _first(location: Location) -> Iterator[str]:
    """Yield a mark at the first module that differs."""
    found = location.module
    place = next((one.place for one in location.substitutions if found is not None and one.value == found.value), None)
    if found is None or place is None:
        return
    x = LEFT + _SPAN * place / location.borders
    late = x > LEFT + _SPAN / 2
    yield svg.line(x, TOP - 6, x, _BASE, "first")
    name = formatting.module(found.module)
    yield svg.text(x + (-6 if late else 6), TOP - 10, name, "name", anchor="end" if late else "start", longest=60)


def _point(location: Location, index: int) -> tuple[float, float]:
    one = location.substitutions[index]
    return LEFT + _SPAN * one.place / location.borders, _BASE - PLOT * min(_left(location, index), 1.0)


def _left(location: Location, index: int) -> float:
    return (location.substitutions[index].error / location.error) ** 2 if location.error else 0.0


def _hover(location: Location, index: int) -> str:
    one = location.substitutions[index]
    name = formatting.module(one.module) if one.place else "the inputs"
    return f"after {name}: {100 * _left(location, index):.0f} % of the squared error is left"
