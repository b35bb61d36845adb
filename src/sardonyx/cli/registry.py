"""Find commands by name: modules in `sardonyx.verbs`, and entry points `sardonyx.verbs` of other packages.

The module of a command has a docstring, whose first line is the summary and whose rest is the help, and a `VERB`.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sardonyx.errors import SardonyxError
from sardonyx.records.outside import entry_points, module

if TYPE_CHECKING:
    from sardonyx.cli.verb import Verb

_FOLDER = Path(__file__).parents[1] / "verbs"
_FIRST = ("export", "optimize", "verify", "quantize")  # in the list of commands; the others follow by name
_SUMMARY = re.compile(r'"""(.*)')


class Command(Struct, frozen=True):
    """A command that was loaded."""

    name: str
    summary: str
    help: str
    verb: Verb


def _built_in() -> tuple[str, ...]:
    names = {path.stem for path in _FOLDER.iterdir() if not path.name.startswith(("_", "."))}
    return (*_FIRST, *sorted(names - {*_FIRST}))


VERBS = _built_in()


def outside() -> tuple[str, ...]:
    """Return the commands of other packages; a built-in command cannot be replaced."""
    return tuple(name for name in entry_points() if name not in VERBS)


def summaries() -> dict[str, str]:
    """Return all commands with a line about each."""
    found = {name: _summary(name) for name in VERBS}
    for name in outside():
        try:
            found[name] = _of_module(name, module(name)).summary
        except SardonyxError as error:
            found[name] = error.message
    return found


def load(name: str) -> Command | None:
    """Return the command with a name; None if there is none.

    Raises:
        SardonyxError: the package that has it cannot be loaded.
    """
    if name in VERBS:
        return _of_module(name, import_module(_module(name)))
    return _of_module(name, module(name)) if name in outside() else None


def _module(name: str) -> str:
    return f"sardonyx.verbs.{name}" + (".command" if (_FOLDER / name).is_dir() else "")


def _summary(name: str) -> str:
    """Return the first line of the docstring of a built-in command, which is not imported."""
    path = _FOLDER / name
    text = (path / "command.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    match = _SUMMARY.match(text)
    return "" if match is None else match[1].removesuffix('"""')


def _of_module(name: str, module: Any) -> Command:
    summary, _, text = str(module.__doc__ or "").partition("\n\n")
    return Command(name, summary, f"\b\n{text}", module.VERB)  # \b: typer keeps the lines of the example
