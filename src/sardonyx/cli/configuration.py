"""Defaults of options from the nearest `sardonyx.toml`, or the table `[tool.sardonyx]` of a `pyproject.toml`.

The nearest folder with either counts, from the current one upward, and `sardonyx.toml` comes before `pyproject.toml`.
Keys are options without `--`: those of the table are for every command that has them, those of a table in it with the
name of a command for that command. The command line wins. A file may come with a repository of somebody else: it can
neither name code that runs nor allow that files are overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import typer

from sardonyx.cli import options
from sardonyx.cli.options import Option
from sardonyx.errors import UsageError, suggest

NAMES = ("sardonyx.toml", "pyproject.toml")
_SECTION = b"tool.sardonyx"  # a pyproject.toml without these bytes is not parsed
CODE = re.compile(r".+\.py:\w+", re.DOTALL)
_COMMAND_LINE_ONLY = frozenset(("output", "force", "allow-code", "custom-ops", "cluster", "debug", "help"))
# Shared options that are made for each command.
_BUILT = ("certificate", "dry-run", "format", "only", "output", "run", "seconds", "skip", "source", "svg", "target")


def shared() -> set[str]:
    """Return the options that several commands have, as a file names them."""
    found: list[Any] = []
    for value in vars(options).values():
        found += cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    flags = (each.flag for each in found if isinstance(each, Option) and not each.argument)
    return {*_BUILT, *(flag.removeprefix("--") for flag in flags)}


def find(folder: Path) -> Path | None:
    """Return the nearest file with defaults, at or above a folder; None if there is none."""
    for above in (folder, *folder.parents):
        for path in (above / name for name in NAMES):
            if path.is_file() and (path.name == NAMES[0] or _SECTION in path.read_bytes()):
                return path
    return None


def defaults(path: Path, command: Any, commands: Collection[str]) -> dict[str, Any]:
    """Return the defaults for one command that typer made, by parameter; `commands` are the names of all.

    Raises:
        UsageError: the file is not TOML, a key is no option or command, or a value does not fit its option.
    """
    known = {max(one.opts, key=len)[2:]: one for one in command.params if one.param_type_name == "option"}
    chosen: dict[str, Any] = {}
    for table, key, value in _entries(path, command.name, commands):
        place = f"{path}: {table}{key}"
        if key in _COMMAND_LINE_ONLY:
            raise UsageError(f"{place} can only be given on the command line")
        if key in known:
            chosen[known[key].name] = _value(known[key], value, path.parent, place, typer.Context(command))
        elif table or key not in shared():
            names = {*known, *(() if table else (*shared(), *commands))} - _COMMAND_LINE_ONLY
            raise UsageError(f"{place}: there is no such option", hint=suggest(key, names))
    return chosen


def _entries(path: Path, name: str, commands: Collection[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the table, key and value of each entry for a command, those of its own table last."""
    import tomllib  # only if there is a file

    try:
        content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        table = content if path.name == NAMES[0] else content["tool"]["sardonyx"]
        tables: dict[str, Any] = {
            key: value for key, value in table.items() if isinstance(value, dict) and key in commands
        }
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it has defaults of options") from error
    except (KeyError, AttributeError, TypeError):  # the bytes are in a comment; or another value is in place of a table
        return
    yield from (("", key, value) for key, value in table.items() if key not in tables)
    yield from ((f"{name}.", key, value) for key, value in tables.get(name, {}).items())


def _value(option: Any, value: Any, folder: Path, place: str, context: typer.Context) -> Any:
    """Return a value as typer takes it; relative paths begin at the folder of the file."""
    listed = cast("list[Any]", value) if isinstance(value, list) else [value]
    if any(isinstance(one, str) and CODE.fullmatch(one) for one in listed):
        raise UsageError(f"{place} is code, which would run here", hint="name it on the command line")
    if "Path" in type(option.type).__name__:
        listed = [str(folder / str(one)) for one in listed]
    try:
        if isinstance(value, dict) or isinstance(value, bool) != option.is_flag or (len(listed) > 1 > option.multiple):
            raise typer.BadParameter("it has another type")
        chosen = listed if option.multiple else listed[0]
        option.type_cast_value(context, chosen)
    except (typer.BadParameter, IndexError) as error:
        raise UsageError(f"{place} = {value!r} is not valid: {error}") from error
    return chosen
