"""A histogram of shares: how many models save how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _FOOT = 960, 64, 16, 84, 220, 52
_BINS = 20  # between 0 and 100 %


def histogram(shares: Sequence[float], what: str) -> svg.Picture:
    """Return how many of the shares lie in each step of 5 %; those below zero are one bar at the left."""
    counts = Counter(max(-1, min(_BINS - 1, int(share * _BINS // 1))) for share in shares)
    up = svg.ticks(0, max(counts.values(), default=1), 4)
    step = (_WIDTH - _LEFT - _RIGHT) / (_BINS + 1)
    bottom = _TOP + _HEIGHT
    body: list[str] = []
    for mark in up:
        y = bottom - _HEIGHT * mark / up[-1]
        body += [svg.line(_LEFT, y, _WIDTH - _RIGHT, y), svg.text(_LEFT - 8, y + 4, f"{mark:g}", "soft", anchor="end")]
    bars: list[str] = []
    for place in range(-1, _BINS):
        height = _HEIGHT * counts[place] / up[-1]
        x = _LEFT + step * (place + 1)
        hover = f"{_range(place)}: {formatting.plural(counts[place], 'model')}"
        bars.append(svg.rect(x + 1, bottom - height, step - 2, height, hover=hover))
        if place < 0:
            body.append(svg.text(x + 0.3 * step, bottom + 18, "< 0", "soft", anchor="middle"))
        elif place % 2 == 0:
            body.append(svg.text(x, bottom + 18, f"{100 * place // _BINS} %", "soft", anchor="middle"))
    body += [svg.group(0, bars), svg.line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "axis")]
    body.append(svg.text(_WIDTH - _RIGHT, bottom + 40, f"{what} saved", "soft", anchor="end"))
    numbers = ", ".join(f"{_range(place)}: {counts[place]}" for place in sorted(counts))
    title = f"Share of {what} saved, {formatting.plural(len(shares), 'model')}"
    return svg.Picture(
        "histogram", _WIDTH, bottom + _FOOT, title, "Models in each step of 5 %.", body, description=numbers
    )


def _range(place: int) -> str:
    return "less than 0 %" if place < 0 else f"{100 * place // _BINS} to {100 * (place + 1) // _BINS} %"
