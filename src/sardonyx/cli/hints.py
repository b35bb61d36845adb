"""Hints of the library name parameters of Python, in backquotes; here they become flags of the command line."""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]+))?`")
_ENTRY = re.compile(r"\{'(?P<key>[^']*)': (?P<value>[^`]*)\}")  # of a parameter that is a mapping
_NAMES = {"keep_modules": "keep-module"}  # flags that are not called as their parameters are
_TRACEBACK = "see the traceback"


def in_flags(hint: str) -> str:
    """A hint with every parameter as the flag that sets it: `verify=False` as --no-verify."""
    return _PARAMETER.sub(_flag, hint.replace(_TRACEBACK, "--debug shows the traceback"))


def _flag(found: re.Match[str]) -> str:
    name, value = _NAMES.get(found["name"], found["name"].replace("_", "-")), found["value"]
    if value is None or value == "True":
        return f"--{name}"
    if value == "False":
        return f"--no-{name}"
    if entry := _ENTRY.fullmatch(value):  # one flag an entry: `inputs` is --input, `sweep` is --sweep
        return f"--{name.removesuffix('s')} {entry['key']}={entry['value']}"
    return f"--{name} {value.strip(chr(34))}"
