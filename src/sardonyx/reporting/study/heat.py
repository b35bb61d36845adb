"""Tables of models by something else as a field of squares: what stands in a square is also written in it.

A square is stronger the more it is worth. What was measured and is within the noise stays paper: a colour is a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.records.study import Table
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg
from sardonyx.reporting.study.rows import SAME, claim, number, numbers, rows

_LEFT, _ROW, _WIDTH = 220, 26, 46
_LONGEST = 30  # characters of a heading
_GOOD, _BAD, _MIDDLING = 0, 1, 2  # blue, amber, teal: told apart by everyone, and by what is written


@dataclass(frozen=True, slots=True)
class Square:
    """One entry: what is written, and how strongly in which colour; strength 0 is paper."""

    written: str
    strength: float = 0.0
    color: int = _GOOD
    hover: str = ""


def field(
    title: str, about: str, across: Sequence[str], down: Sequence[str], squares: dict[tuple[str, str], Square]
) -> str:
    """Squares by (row, column)."""
    width = max(_LEFT + _WIDTH * len(across) + 130, 720)
    head = 86 + 5 * min(max(map(len, across), default=0), _LONGEST)  # a heading leans by 45 degrees
    body: list[str] = []
    for at, name in enumerate(across):
        body.append(svg.text(_LEFT + (at + 0.6) * _WIDTH, head - 10, name, "soft", turned=-45, longest=_LONGEST))
    for line, name in enumerate(down):
        top = head + line * _ROW
        body.append(svg.text(_LEFT - 10, top + 18, name, anchor="end", longest=_LONGEST))
        body.append(svg.line(_LEFT, top, _LEFT + _WIDTH * len(across), top))
        for at, column in enumerate(across):
            square = squares.get((name, column))
            if square is not None:
                body.append(_drawn(square, _LEFT + at * _WIDTH, top))
    return svg.Picture("heat", width, head + _ROW * len(down) + 28, title, about, body, _STYLE).file()


_STYLE = """
.sardonyx .in { font-size: 11px; }
"""


def _drawn(square: Square, left: float, top: float) -> str:
    written = svg.text(left + _WIDTH / 2, top + 17, square.written, "in", anchor="middle", longest=9)
    if square.strength <= 0:
        return written
    strength = f'fill-opacity="{svg.at(0.15 + 0.5 * min(square.strength, 1.0))}"'
    box = svg.rect(left + 1, top + 1, _WIDTH - 2, _ROW - 2, hover=square.hover, more=strength)
    return svg.group(square.color, (box, written))


def strength(share: float) -> float:
    """How strongly a part of a whole is shown: small parts can be seen, and half of it is as strong as can be."""
    return min(1.0, 0.1 + (2 * share) ** 0.5) if share else 0.0


def pass_matrix(table: Table, title: str) -> str:
    """Nodes removed, model by pass: the stronger, the larger a part of the model's nodes."""
    fixed = ("model", "before", "removed", "after")
    passes = [column for column in table.columns if column not in fixed]
    squares: dict[tuple[str, str], Square] = {}
    for row in rows(table):
        model, before = str(row["model"]), number(row["before"]) or 1.0
        for name in passes:
            removed = number(row[name]) or 0.0
            if removed:
                share, said = abs(removed) / before, formatting.count(int(removed))
                color = _GOOD if removed > 0 else _BAD
                hover = f"{name} on {model}: {said} of {before:,.0f} nodes"
                squares[model, name] = Square(said, strength(share), color, hover)
    down = [str(row["model"]) for row in rows(table)]
    return field(
        title, "Blue: fewer nodes, amber: more. Numbers of nodes within the whole pipeline.", passes, down, squares
    )


def pass_times(table: Table, title: str) -> str:
    """What a pass is worth: time of the pipeline without it over the whole; coloured where that is beyond the noise."""
    found = [row for row in rows(table) if row["how"] == "without"]
    passes, down = (list(dict.fromkeys(str(row[column]) for row in found)) for column in ("pass", "model"))
    squares: dict[tuple[str, str], Square] = {}
    for row in found:
        measured = numbers(row, "ratio", "low", "high")
        if measured is None:
            continue
        ratio, low, high = measured
        said = f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
        strength = min(1.0, 0.1 + abs(ratio - 1) * 8) if claim(row) != SAME else 0.0
        hover = f"{row['pass']} on {row['model']}: {said} without it ({low:.3f} to {high:.3f})"
        color = _GOOD if ratio > 1 else _BAD
        squares[str(row["model"]), str(row["pass"])] = Square(said, strength, color, hover)
    about = "How much longer a run takes without the pass. Blue: it pays, amber: it costs, no colour: within the noise."
    return field(title, about, passes, down, squares)


def orders(table: Table, title: str) -> str:
    """Shuffles by model: same graph, same up to constants, another graph."""
    colors = {"same": ("=", 0.4, _GOOD), "other constants": ("≈", 0.4, _MIDDLING)}
    found = rows(table)
    down, across = list(dict.fromkeys(str(row["model"]) for row in found)), list[str]()
    squares: dict[tuple[str, str], Square] = {}
    placed: dict[str, int] = {}
    for row in found:
        model = str(row["model"])
        placed[model] = placed.get(model, 0) + 1
        column = f"order {placed[model]}"
        across = across if column in across else [*across, column]
        written, strength, color = colors.get(str(row["outcome"]), ("≠", 0.9, _BAD))
        hover = f"{model}, shuffle {row['shuffle']}: {row['outcome']}"
        squares[model, column] = Square(written, strength, color, hover)
    return field(title, "= the usual graph, ≈ the same with other constants, ≠ another graph.", across, down, squares)
