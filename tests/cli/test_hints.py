"""Hints name parameters for Python and flags on the command line, and only what exists."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from pathlib import Path

import pytest

import sardonyx
from commands import subcommand
from sardonyx.cli.main import VERBS
from sardonyx.reporting.formatting import with_flags

SOURCE = Path(__file__).parent.parent.parent / "src" / "sardonyx"
OF_THE_COMMAND_LINE = ("cli", "verbs", "reporting/gate.py", "reporting/measures.py")  # modules that parse flag texts
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("overwrite it with `force=True`", "overwrite it with --force"),
        ('`verify="off"` writes it unverified', "--verify off writes it unverified"),
        ("leave it out of `dynamic`", "leave it out of --dynamic"),
        ("`opset=20` works", "--opset 20 works"),
        ("optimizing with `keep_modules=p.m` leaves it apart", "optimizing with --keep-module p.m leaves it apart"),
        ("`inputs={'x': float32[2,3]}`", "--input x=float32[2,3]"),
        ("name some: `sweep={'seq': [16, 128]}`", "name some: --sweep seq=16,128"),
        ("`dynamic={'x': {1: 'NAME'}}` asks for it", "--dynamic x:1=NAME asks for it"),
        ("for example `inputs={'a': int64[2,16]}`", "for example --input a=int64[2,16]"),
        ("leave it out with `skip=['fold-x']`", "leave it out with --skip fold-x"),
        ("see the traceback", "--debug shows the traceback"),
        ("`sardonyx passes` lists them", "`sardonyx passes` lists them"),
    ],
)
def test_parameters_become_flags(hint: str, expected: str) -> None:
    assert with_flags(hint) == expected


@functools.cache
def hints() -> dict[str, str]:
    """Every `hint=` text of the library by its place, without the values of f-strings."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(OF_THE_COMMAND_LINE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                parts = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
                found[f"{place}:{node.value.lineno}"] = "".join(part for part in parts if isinstance(part, str))
    return found


@pytest.mark.slow
def test_no_hint_of_the_library_names_a_flag() -> None:
    assert len(hints()) > 100
    assert {place: text for place, text in hints().items() if FLAG.search(text.replace("`sardonyx ", ""))} == {}


WRITES_NO_RECORDS = (*OF_THE_COMMAND_LINE, "reporting", "errors.py", "runtime/browser.py")  # it has flags of Chromium


@pytest.mark.slow
def test_no_text_of_a_record_names_a_flag() -> None:
    """Users of Python read records too: only docstrings may name flags in the modules that write records."""
    named: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(WRITES_NO_RECORDS):
            continue
        tree = ast.parse(path.read_text())
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in documented:
                continue
            if isinstance(node.value, str) and FLAG.search(node.value):
                named[f"{place}:{node.lineno}"] = node.value
    assert named == {}


def test_names_in_hints_exist_in_python_and_on_the_command_line() -> None:
    functions = [public for name in sardonyx.__all__ if inspect.isroutine(public := getattr(sardonyx, name))]
    options = (sardonyx.OptimizeOptions, sardonyx.TuneOptions, sardonyx.ExportOptions)
    parameters = {name for public in (*functions, *options) for name in inspect.signature(public).parameters}
    flags = {flag for verb in VERBS for one in subcommand(verb).params for flag in (*one.opts, *one.secondary_opts)}
    named = {name for text in hints().values() for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", text)}
    assert {"force", "verify", "dynamic", "inputs", "task"} <= named <= parameters
    assert {flag for text in hints().values() for flag in FLAG.findall(with_flags(text))} <= flags
