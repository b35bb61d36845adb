"""How numbers, names and emphasis are written: one place, so that every view reads alike.

Names come from model files and are hostile until shown otherwise: a character that would move the cursor, turn the
reading direction or colour the terminal is spelled out instead of sent.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Style:
    """Emphasis, or none where the reader is not a terminal."""

    color: bool = False

    def strong(self, text: str) -> str:
        """Headings."""
        return self._paint("1", text)

    def faint(self, text: str) -> str:
        """Remarks."""
        return self._paint("2", text)

    def good(self, text: str) -> str:
        """What went well."""
        return self._paint("32", text)

    def bad(self, text: str) -> str:
        """What went wrong."""
        return self._paint("1;31", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text


def visible(text: str) -> str:
    """The text with everything unprintable spelled out, on one line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def one_line(text: str) -> str:
    """Several lines as one, nothing unprintable left."""
    return visible(" ".join(text.split()))


def name(text: str, longest: int = LONGEST_NAME) -> str:
    """A name from a model, safe to print; a very long one loses its middle."""
    shown = visible(text)
    if len(shown) <= longest:
        return shown
    head = (longest - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (longest - 1 - head) :]}"


def count(number: int) -> str:
    """12345 as 12,345."""
    return f"{number:,}".replace("-", "−")


def change(number: int) -> str:
    """A difference with its sign; nothing for none."""
    return f"+{number:,}" if number > 0 else count(number) if number else "·"


def percent(before: int, after: int) -> str:
    """The change in percent; one decimal where whole percents would say nothing."""
    if not before or before == after:
        return "±0 %"
    share = 100 * (after - before) / before
    digits = 0 if abs(share) >= 1 else 1
    sign = "+" if share > 0 else "−"
    return f"{sign}{abs(share):.{digits}f} %"


def size(octets: int) -> str:
    """Bytes in the unit that gives three digits."""
    return _three_digits(octets, ("B", "kB", "MB", "GB", "TB"))


def amount(number: int) -> str:
    """A large count in the unit that gives three digits: 35.2 G."""
    return _three_digits(number, ("", "k", "M", "G", "T", "P")).rstrip()


def _three_digits(number: int, units: tuple[str, ...]) -> str:
    sign, value = ("−" if number < 0 else ""), float(abs(number))
    for unit in units[:-1]:
        if value < 999.5:
            digits = 0 if unit == units[0] or value >= 99.95 else 1
            return f"{sign}{value:.{digits}f} {unit}"
        value /= 1000
    return f"{sign}{value:.1f} {units[-1]}"


def size_change(octets: int) -> str:
    """A difference in bytes with its sign; nothing for none."""
    return "·" if not octets else size(octets) if octets < 0 else f"+{size(octets)}"


def from_to(before: str, after: str) -> str:
    """Before and after; a shared unit is said once."""
    number, _space, unit = before.rpartition(" ")
    return f"{number if number and after.endswith(' ' + unit) else before} → {after}"


def seconds(duration: float) -> str:
    """A duration with three digits at most."""
    if duration < 0.9995:
        return f"{1000 * duration:.0f} ms"
    return f"{duration:.0f} s" if duration >= 100 else f"{duration:.1f} s"


def difference(value: float) -> str:
    """A deviation: 0, or two digits and a power; infinite from the largest number on."""
    if value >= sys.float_info.max:
        return "∞"
    return "0" if value == 0 else f"{value:.1e}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """1 node, 2 nodes."""
    return f"{count(number)} {noun if number == 1 else several or noun + 's'}"
