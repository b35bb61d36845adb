"""Hints and notes name Python parameters in backquotes; what a command line made names its flags instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

if TYPE_CHECKING:
    from sardonyx.records.analysis import Analysis
    from sardonyx.records.bench import Benchmark
    from sardonyx.records.export import Export

Noted = TypeVar("Noted", "Analysis", "Benchmark", "Export")
_PARAMETER = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]+))?`")
_ENTRY = re.compile(r"\{'(?P<key>[^']*)': (?P<value>[^`]*)\}")  # the value of a parameter that is a mapping
_AXIS = re.compile(r"\{'(?P<key>[^']*)': \{(?P<axis>\d+): (?P<value>[^`{}]*)\}\}")  # the same, by axis
_LIST = re.compile(r"\[(?P<items>[^\[\]]*)\]")
_FLAG_NAMES = {"keep_modules": "keep-module"}  # flags whose name differs from the parameter's
_TRACEBACK = "see the traceback"


def with_flags(text: str) -> str:
    """Return a text with every Python parameter replaced by the flag that sets it: `verify=False` by --no-verify."""
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
