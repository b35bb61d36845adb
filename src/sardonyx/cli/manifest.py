"""What the command for each model gets: the options given for all models, and those on its line of a manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import typer
import typer.main

from sardonyx.cli.main import load
from sardonyx.cli.parser import callback
from sardonyx.errors import UsageError
from sardonyx.fleet.sources import Source

NOT_FOR_ONE = frozenset(
    (
        *("models", "reference", "candidate", "model", "source", "output", "out_dir", "workers", "cluster", "timeout"),
        *("memory", "keep_going", "allow_code", "force", "as_json", "quiet", "verbose", "debug", "fail_if", "baseline"),
        *("summary", "record", "run_folder", "svg"),
    )
)  # options of the command about many that the command about one does not get, from a manifest neither
_CODE = re.compile(r".+\.py:\w+", re.DOTALL)
_LIBRARIES = "custom_ops"


def words_of(context: typer.Context) -> tuple[str, ...]:
    """Return the options that were given on the command line and that the command for each model gets."""
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params.get(name)
        if name in NOT_FOR_ONE or value is None or value == parameter.default:
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[-1] if value else parameter.secondary_opts[-1])
            continue
        for one in cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,):
            text = str(os.path.realpath(one) if isinstance(one, Path) else getattr(one, "value", one))
            words += (max(parameter.opts, key=len), text)
    return tuple(words)


def check_manifests(context: typer.Context, sources: Iterable[Source], *, allow_code: bool) -> None:
    """Raise an error if a manifest sets where results go, or names code although that is not allowed.

    A manifest may come from somebody else, as models do.
    """
    for source in sources:
        if not source.line:
            continue
        given = _given(context, source.options)
        given += _given(_context("export"), source.export) if source.export else []
        for parameter, _ in given:
            if parameter.name in NOT_FOR_ONE:
                option = max(parameter.opts, key=len)
                hint = "give it to the command: lines have options that change the result of one model"
                raise UsageError(f"{source.line}: a manifest cannot set {option}", hint=hint)
        code = [] if allow_code else _code(source, given)
        if code:
            hint = "add --allow-code if you trust everything that the manifest names"
            raise UsageError(f"{source.line}: {code[0]} is code, which would run here", hint=hint)


def _given(context: typer.Context, words: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return the parameters that words of a command line set, with their values.

    Words that are not valid set nothing: the command for this model says why, before it does anything.
    """
    parser = context.command.make_parser(context)
    try:
        values, _, parameters = parser.parse_args(list(words))
    except typer.TyperException:
        return []
    pairs = ((parameter, values.get(str(parameter.name))) for parameter in parameters)
    return [(parameter, value) for parameter, value in pairs if value is not None and value != ()]


def _context(name: str) -> typer.Context:
    """Return a context of another command."""
    command, app = load(name), typer.Typer()
    assert command is not None
    app.command(name)(callback(command.verb))
    return typer.Context(typer.main.get_command(app))  # pyright: ignore[reportArgumentType]


def _code(source: Source, given: Sequence[tuple[Any, Any]]) -> list[str]:
    """Return the code that a line names."""
    code = [text for text in (source.location, source.candidate or "") if _CODE.fullmatch(text)]
    for parameter, value in given:
        texts = map(str, cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,))
        code += [text for text in texts if parameter.name == _LIBRARIES or _CODE.fullmatch(text)]
    return code
