"""How far results move, as strips: a row a model and class, darker where more elements are."""

from __future__ import annotations

import math

from sardonyx.records.study import Table
from sardonyx.reporting.plots import svg
from sardonyx.reporting.study.rows import number, rows

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 960, 340, 40, 104, 24
_COLOR = {"exact": 0, "reassociates": 2, "approximates": 1}


def tolerance(table: Table, title: str) -> str:
    """Bins of differences in powers of two of eps; the first column is equal."""
    strips: dict[tuple[str, str], dict[int | None, float]] = {}
    for row in rows(table):
        edge, count = number(row["up_to_times_eps"]), number(row["elements"])
        if edge is not None and count:
            power = round(math.log2(edge)) if edge > 0 else None
            strips.setdefault((str(row["model"]), str(row["class"])), {})[power] = count
    powers = [power for strip in strips.values() for power in strip if power is not None]
    low, high = (min(powers), max(powers)) if powers else (0, 0)
    columns: list[int | None] = [None, *range(low, high + 1)]
    step = (_WIDTH - _LEFT - _RIGHT) / len(columns)
    body = [svg.text(_LEFT + (at + 0.5) * step, _TOP - 10, _head(power), "soft", anchor="middle")
            for at, power in enumerate(columns) if power is None or len(columns) <= 14 or power % 4 == 0]  # fmt: skip
    for line, ((model, accuracy), strip) in enumerate(strips.items()):
        top, total = _TOP + line * _ROW, sum(strip.values())
        body.append(svg.text(_LEFT - 12, top + 16, f"{model}, {accuracy}", anchor="end", longest=46))
        squares = [
            _square(_LEFT + at * step, top, step, strip[power] / total, f"{model}, {accuracy}: {_head(power)}")
            for at, power in enumerate(columns)
            if power in strip
        ]
        body.append(svg.group(_COLOR.get(accuracy, 3), squares))
    height = _TOP + _ROW * len(strips) + 24
    about = (
        "Elements by their difference, in units of the type's eps relative to value and scale: up to 2 to this power."
    )
    return svg.Picture("spread", _WIDTH, height, title, about, body).file()


def _square(left: float, top: float, width: float, share: float, where: str) -> str:
    strength = f'fill-opacity="{svg.at(0.08 + 0.92 * share**0.5)}"'
    return svg.rect(left, top + 2, width - 1, _ROW - 4, hover=f"{where}: {share:.2%} of elements", more=strength)


def _head(power: int | None) -> str:
    return "equal" if power is None else f"{power}".replace("-", "−")
