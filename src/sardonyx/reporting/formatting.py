"""Hints and notes name Python parameters in backquotes; what a command line made names its flags instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

if TYPE_CHECKING:
    from sardonyx.records.analysis import Analysis
    from sardonyx.records.bench import Benchmark
    from sardonyx.records.export import Export

LONGEST_NAME = 60
MODEL = "(model)"  # in place of the path of the model itself
_NOT_PLAIN = re.compile(r"[^\n -~]")


def visible(text: str) -> str:
    """Return the text on one line with every unprintable character as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else str(c.encode("unicode_escape", "backslashreplace"), "ascii") for c in text)


def printable_json(document: bytes) -> str:
    """Return a JSON document, equal in content, with every unprintable character as an escape sequence."""

    def written(match: re.Match[str]) -> str:
        char = match[0]
        units = char.encode("utf-16-be")  # characters beyond 16 bits are two escape sequences
        return char if char.isprintable() else "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))

    return _NOT_PLAIN.sub(written, document.decode())


def one_line(text: str) -> str:
    """Return several lines as one, without unprintable characters."""
    return visible(" ".join(text.split()))


def name(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a printable name; the middle of a very long one is left out."""
    shown = visible(text)
    if len(shown) <= longest:
        return shown
    head = (longest - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (longest - 1 - head) :]}"


def module(path: str, longest: int = LONGEST_NAME) -> str:
    """Return the path of a module; that of the model itself is empty."""
    return name(path, longest) or MODEL


def count(number: int) -> str:
    """Return 12345 as 12,345."""
    return f"{number:,}".replace("-", "−")


def change(number: int) -> str:
    """Return a difference with its sign, or a dot for zero."""
    return f"+{number:,}" if number > 0 else count(number) if number else "·"


def percent(before: int, after: int) -> str:
    """Return the change in percent, with one decimal if it is below one percent."""
    if not before or before == after:
        return "±0 %"
    share = 100 * (after - before) / before
    digits = 0 if abs(share) >= 1 else 1
    sign = "+" if share > 0 else "−"
    return f"{sign}{abs(share):.{digits}f} %"


def signed(number: float, unit: str = "%") -> str:
    """Return a change with its sign, never rounded to zero: +12 %, −3.4 %, +<0.1 %."""
    sign = "+" if number > 0 else "−"
    if abs(number) < 0.05:
        return f"{sign}<0.1 {unit}"
    return f"{sign}{abs(number):.{0 if abs(number) >= 10 and unit == '%' else 1}f} {unit}"


def size(octets: int) -> str:
    """Return bytes in the unit that gives three digits."""
    return _three_digits(octets, ("B", "kB", "MB", "GB", "TB"))


def amount(number: int) -> str:
    """Return a large count in the unit that gives three digits: 35.2 G."""
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
    """Return a difference in bytes with its sign, or a dot for zero."""
    return "·" if not octets else size(octets) if octets < 0 else f"+{size(octets)}"


def from_to(before: str, after: str) -> str:
    """Return before and after; a shared unit is written once."""
    number, _space, unit = before.rpartition(" ")
    return f"{number if number and after.endswith(' ' + unit) else before} → {after}"


def counts(before: int, after: int) -> str:
    """Return two counts: 215 → 74."""
    return f"{count(before)} → {count(after)}"


def sizes(before: int, after: int) -> str:
    """Return two sizes: 17.6 → 4.4 MB."""
    return from_to(size(before), size(after))


def seconds(duration: float) -> str:
    """Return a duration with three digits at most."""
    if duration < 0.9995:
        return f"{1000 * duration:.0f} ms"
    return f"{duration:.0f} s" if duration >= 100 else f"{duration:.1f} s"


def milliseconds(number: float) -> str:
    """Return milliseconds with three digits, down to a microsecond, without the unit."""
    if 0 < number < 0.0005:
        return "<0.001"
    return f"{number:,.{0 if number >= 99.95 else 1 if number >= 9.995 else 2 if number >= 0.9995 else 3}f}"


def date(recorded: str) -> str:
    """Return 2026-11-17T07:50:03Z as 2026-11-17 07:50 UTC; anything else as it is."""
    day, _letter, clock = visible(recorded).partition("T")
    return f"{day} {clock[:5]} UTC" if clock.endswith("Z") else visible(recorded)


def phases(times: Mapping[str, float]) -> str:
    """Return how long each phase took: load 12 ms, verify 3.4 s."""
    return ", ".join(f"{name(phase)} {seconds(time)}" for phase, time in times.items())


def versions(packages: Mapping[str, str]) -> str:
    """Return the versions of packages: numpy 2.4.0, onnx 1.23.2."""
    return ", ".join(f"{package} {version}" for package, version in sorted(packages.items()))


def difference(value: float) -> str:
    """Return a deviation: 0, or two digits and a power; infinite from the largest float on."""
    if value >= sys.float_info.max:
        return "∞"
    return "0" if value == 0 else f"{value:.1e}"


def opset(opsets: Mapping[str, int]) -> str:
    """Return the version of the standard opset: opset 20."""
    version = opsets.get("", opsets.get("ai.onnx"))
    return "no standard opset" if version is None else f"opset {version}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun: 1 node, 2 nodes."""
    return f"{count(number)} {noun if number == 1 else several or noun + 's'}"


Noted = TypeVar("Noted", "Analysis", "Benchmark", "Export")
_PARAMETER = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]+))?`")
_ENTRY = re.compile(r"\{'(?P<key>[^']*)': (?P<value>[^`]*)\}")  # the value of a parameter that is a mapping
_AXIS = re.compile(r"\{'(?P<key>[^']*)': \{(?P<axis>\d+): (?P<value>[^`{}]*)\}\}")  # the same, by axis
_LIST = re.compile(r"\[(?P<items>[^\[\]]*)\]")
_FLAG_NAMES = {
    "keep_modules": "keep-module",
    "only_modules": "only-module",
}  # flags whose name differs from the parameter's
_TRACEBACK = "see the traceback"


def with_flags(text: str) -> str:
    """Return a text with every Python parameter replaced by the flag that sets it: `optimize=True` by --optimize."""
    return _PARAMETER.sub(_flag, text.replace(_TRACEBACK, "--debug shows the traceback"))


def notes_with_flags(record: Noted) -> Noted:
    """Return a copy of a record, to be shown on the command line, whose notes name flags instead of parameters."""
    return structs.replace(record, notes=tuple(map(with_flags, record.notes)))


def _flag(match: re.Match[str]) -> str:
    name, value = _FLAG_NAMES.get(match["name"], match["name"].replace("_", "-")), match["value"]
    if value is None or value == "True":
        return f"--{name}"
    if value == "False":
        return f"--no-{name}"
    if entry := _AXIS.fullmatch(value):
        return f"--{name} {entry['key']}:{entry['axis']}={_as_argument(entry['value'])}"
    if entry := _ENTRY.fullmatch(value):  # one flag for each entry: `inputs` is --input, `sweep` is --sweep
        return f"--{name.removesuffix('s')} {entry['key']}={_as_argument(entry['value'])}"
    return f"--{name} {_as_argument(value)}"


def _as_argument(value: str) -> str:
    """Return a Python value as the command line writes it: without quotes, the items of a list separated by commas."""
    items = _LIST.fullmatch(value)
    return value.strip("'\"") if items is None else ",".join(item.strip(" '\"") for item in items["items"].split(","))
