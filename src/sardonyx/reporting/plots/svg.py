"""The elements of pictures: a light or dark background, escaped text, lines, ticks, colours.

SVG without scripts, the same bytes for the same data: as a self-contained file, or as a part of the HTML page, whose
theme it then follows. The colours can be distinguished with red-green blindness and on both backgrounds; their meaning
is always written as well.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from xml.sax.saxutils import escape

from markupsafe import Markup
from msgspec import Struct

from sardonyx.reporting import formatting as fmt

# On a light and on a dark background: blue, amber, teal, magenta, sky, violet, brown, sand.
COLORS = (
    ("#1d4ed8", "#68a0fe"),
    ("#b45309", "#f7a73b"),
    ("#0f766e", "#46cdb7"),
    ("#9d174d", "#cf5d85"),
    ("#5194d5", "#b7d8fb"),
    ("#4c0f6d", "#8c69fc"),
    ("#5e2903", "#bc6b3b"),
    ("#bc7f5c", "#eadaae"),
)
LONGEST = 90  # characters of a name
LETTER_WIDTH = 6.9  # upper bound of the width of a character of a label

_HEAD = 64  # height of a picture's title and of the text under it

_PAPER = """
.sardonyx { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #59636e; --rule: #d9dee3; }
@media (prefers-color-scheme: dark) {
  .sardonyx { --paper: #0f1318; --ink: #e6e9ec; --soft: #9aa4ae; --rule: #2c343c; }
}
"""
_STYLE = """
.sardonyx { font: 13px system-ui, sans-serif; }
.sardonyx .paper { fill: var(--paper); }
.sardonyx text { fill: var(--ink); font-variant-numeric: tabular-nums; }
.sardonyx .title { font-size: 17px; font-weight: 600; }
.sardonyx .name { font-weight: 600; fill: var(--own); }
.sardonyx .soft { fill: var(--soft); font-size: 12px; }
.sardonyx .rule { stroke: var(--rule); stroke-width: 1; }
.sardonyx .axis { stroke: var(--soft); stroke-width: 1; }
.sardonyx .own { stroke: var(--own); stroke-width: 1.5; }
.sardonyx .dot { fill: var(--own); stroke: var(--paper); stroke-width: 1.5; }
.sardonyx .fill { fill: var(--own); }
"""


class Picture(Struct, frozen=True):
    """A picture, to be written as a file or as a part of a page."""

    kind: str  # "icicle": scopes its style among other pictures on a page
    width: int  # in units of the picture
    height: int
    title: str  # at the top, and read by screen readers
    about: str  # how to read it, or its numbers as text; under the title
    body: Sequence[str]  # elements, already escaped
    style: str = ""  # more CSS rules, each beginning with ".sardonyx"
    description: str = ""  # the contents as text, for screen readers

    def file(self) -> str:
        """Return the text of an SVG file."""
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sardonyx" role="img"'
            f' viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}">',
            *self._described(),
            f"<style>{_PAPER}{_STYLE}{_own_colors()}{self.style}</style>",
            f'<rect class="paper" width="{self.width}" height="{self.height}"/>',
            text(24, 34, self.title, "title"),
            text(24, 56, self.about, "soft", longest=400),
            *self.body,
            "</svg>\n",
        ))  # fmt: skip

    def inline(self, *, narrowest: int = 600) -> Markup:
        """Return a part of a page with `PAGE_STYLE`: in its colours, as wide as possible, without the title."""
        scoped = self.style.replace(".sardonyx ", f".sardonyx.{self.kind} ")
        return Markup("\n".join((
            f'<svg class="sardonyx {self.kind}" role="img" viewBox="0 {_HEAD} {self.width} {self.height - _HEAD}"'
            f' style="display: block; width: 100%; min-width: {narrowest}px; height: auto">',
            *self._described(),
            f"<style>{scoped}</style>" if scoped else "",
            *self.body,
            "</svg>\n",
        )))  # fmt: skip

    def _described(self) -> tuple[str, str]:
        description = f"{self.about} {self.description}".strip()
        return f"<title>{safe(self.title)}</title>", f"<desc>{safe(description, 4000)}</desc>"


def text(
    x: float, y: float, what: str, kind: str = "", *, anchor: str = "start", turned: float = 0.0, longest: int = LONGEST
) -> str:
    """Return a text at a position, shortened if very long. `anchor`: start, middle or end; `turned` in degrees."""
    classed = f' class="{kind}"' if kind else ""
    anchored = f' text-anchor="{anchor}"' if anchor != "start" else ""
    rotated = f' transform="rotate({at(turned)} {at(x)} {at(y)})"' if turned else ""
    return f'<text{classed} x="{at(x)}" y="{at(y)}"{anchored}{rotated}>{safe(what, longest)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{at(x1)}" y1="{at(y1)}" x2="{at(x2)}" y2="{at(y2)}"/>'


def rect(
    x: float, y: float, width: float, height: float, kind: str = "fill", *, hover: str = "", more: str = ""
) -> str:
    """Return a rectangle; `hover` is its tooltip, `more` are further attributes."""
    place = f'x="{at(x)}" y="{at(y)}" width="{at(width)}" height="{at(height)}"'
    return f'<rect class="{kind}" {place}{" " + more if more else ""}>{_hover(hover)}</rect>'


def dot(x: float, y: float, *, radius: float = 4.5, hover: str = "") -> str:
    """Return a point in the colour of its series."""
    return circle(x, y, "dot", radius=radius, hover=hover)


def circle(x: float, y: float, kind: str, *, radius: float, hover: str = "") -> str:
    """Return a circle; `hover` is its tooltip."""
    return f'<circle class="{kind}" cx="{at(x)}" cy="{at(y)}" r="{at(radius)}">{_hover(hover)}</circle>'


def group(index: int, body: Iterable[str]) -> str:
    """Return the elements of one series; those of the classes own, dot, fill and name get its colour."""
    return "\n".join((f'<g class="own{index % len(COLORS)}">', *body, "</g>"))


def series(index: int, count: int) -> int:
    """Return the colour of one of several series: of two, the second, which is the result, is blue as on the page."""
    return index if count != 2 else (len(COLORS) - 1, 0)[index]


def safe(what: str, longest: int = LONGEST) -> str:
    """Return any name, escaped for SVG."""
    return escape(fmt.name(what, longest), {'"': "&quot;"})


def at(number: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{round(number, 2) + 0.0:g}" if abs(number) < 10_000 else f"{number:.0f}"


def breadth(what: str) -> float:
    """Return an upper bound of the width of a label; East Asian wide characters count twice."""
    return LETTER_WIDTH * sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in what)


def ticks(low: float, high: float, parts: int = 5) -> list[float]:
    """Return round numbers from at most `low` to at least `high`, about `parts` steps."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    if high - low < max(1e-9 * max(abs(low), abs(high)), 1e-290):  # practically one number
        high = low + max(abs(low), 1.0)
    rough = (high - low) / parts
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


class Scale(Struct, frozen=True):
    """Maps numbers to positions on a line."""

    marks: Sequence[float]  # that are labelled, from the lowest to the highest number
    start: float
    end: float

    @classmethod
    def of(cls, numbers: Sequence[float], start: float, end: float, parts: int = 5) -> Scale:
        """Return a scale with round marks that contains all numbers."""
        return cls(ticks(min(numbers), max(numbers), parts), start, end)

    def __call__(self, number: float) -> float:
        """Return the position of a number."""
        low, high = self.marks[0], self.marks[-1]
        return self.start + (self.end - self.start) * (number - low) / (high - low)

    def across(
        self, top: float, bottom: float, axis: float | None = None, write: Callable[[float], str] = "{:g}".format
    ) -> Iterator[str]:
        """Yield a vertical line at each mark of a scale from left to right, the one at `axis` darker, and its label."""
        for mark in self.marks:
            yield line(self(mark), top, self(mark), bottom, "axis" if mark == axis else "rule")
            yield text(self(mark), bottom + 18, write(mark), "soft", anchor="middle")

    def upward(
        self, left: float, right: float, axis: float | None = None, write: Callable[[float], str] = "{:g}".format
    ) -> Iterator[str]:
        """Yield a level line at each mark of a scale from bottom to top, the one at `axis` darker, and its label."""
        for mark in self.marks:
            yield line(left, self(mark), right, self(mark), "axis" if mark == axis else "rule")
            yield text(left - 8, self(mark) + 4, write(mark), "soft", anchor="end")


def _hover(tooltip: str) -> str:
    return f"<title>{safe(tooltip, 400)}</title>" if tooltip else ""


def _own_colors() -> str:
    light = "".join(f".sardonyx .own{index} {{ --own: {color}; }}\n" for index, (color, _) in enumerate(COLORS))
    dark = "".join(f".sardonyx .own{index} {{ --own: {color}; }}\n" for index, (_, color) in enumerate(COLORS))
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


_PAGE_COLORS = "".join(f".sardonyx .own{index} {{ --own: var(--own{index}); }}\n" for index in range(len(COLORS)))
PAGE_STYLE = _STYLE + _PAGE_COLORS  # for a page that defines the colours --own0, --own1, …
