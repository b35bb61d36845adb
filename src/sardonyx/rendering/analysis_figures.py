"""Which numbers of an Analysis stand side by side, what they are called and how they are written.

Text and Markdown draw the same rows, so that no view can say something else than another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sardonyx.analysis_record import Analysis, Form
from sardonyx.rendering import words

Number = float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a name for people, and the key that `Form.figures` has it under."""

    label: str
    key: str
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure for every form, and how each differs from the first."""

    figure: Figure
    values: tuple[Number, ...]

    def cells(self) -> Iterator[str]:
        """The first value, then each other one with its difference."""
        first = self.values[0]
        yield self._written(first)
        for value in self.values[1:]:
            yield self._written(value)
            yield _difference(self.figure, first, value)

    def _written(self, value: Number) -> str:
        return "·" if value is None else self.figure.write(value)


def _count(value: float) -> str:
    return words.count(int(value))


def _amount(value: float) -> str:
    return words.amount(int(value))


def _bytes(value: float) -> str:
    return words.size(int(value))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.1f}"


FIGURES = (
    Figure("graph nodes", "nodes", _count),
    Figure("attentions", "attentions", _count),
    Figure("operations", "operations", _count),
    Figure("views, which cost nothing", "views", _count),
    Figure("multiply-adds", "macs", _amount),
    Figure("flops", "flops", _amount),
    Figure("bytes moved", "traffic_bytes", _bytes),
    Figure("  read", "bytes_read", _bytes),
    Figure("  written", "bytes_written", _bytes),
    Figure("bytes moved if regions were fused", "traffic_if_fused_bytes", _bytes),
    Figure("traffic reduction", "traffic_reduction", _share),
    Figure("flops per byte moved", "intensity", _ratio),
    Figure("regions that fuse", "regions", _count),
    Figure("parameters", "parameters", _count),
    Figure("weights", "weight_bytes", _bytes),
    Figure("inputs", "input_bytes", _bytes),
    Figure("activations at the peak", "activation_bytes", _bytes),
    Figure("  as torch lets them go", "activation_as_run_bytes", _bytes),
    Figure("peak: weights, inputs, activations", "peak_bytes", _bytes),
)


def rows(found: Analysis) -> list[Row]:
    """All figures that any form has."""
    figures = [form.figures() for form in found.forms]
    made = (Row(figure, tuple(each[figure.key] for each in figures)) for figure in FIGURES)
    return [row for row in made if any(value is not None for value in row.values)]


def headings(forms: Sequence[Form]) -> list[str]:
    """Over `Row.cells`."""
    first, *others = (words.name(form.name) for form in forms)
    return [first, *(text for name in others for text in (name, "change"))]


def _difference(figure: Figure, before: Number, after: Number) -> str:
    if before is None or after is None or before == after:
        return "·"
    if figure.write is _share:
        return _signed(100 * (after - before), "points")
    return _signed(100 * (after - before) / before, "%") if before else f"+{figure.write(after)}"


def _signed(number: float, unit: str) -> str:
    """With its sign, and never rounded to nothing."""
    sign = "+" if number > 0 else "−"
    if abs(number) < 0.05:
        return f"{sign}<0.1 {unit}"
    return f"{sign}{abs(number):.{0 if abs(number) >= 10 and unit == '%' else 1}f} {unit}"
