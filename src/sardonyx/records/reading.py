"""Records read back from files: JSON that does not name its kind is recognised by the fields it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, cast

import msgspec

from sardonyx.errors import UsageError


def document(path: Path, said: str, hint: str) -> dict[str, Any]:
    """The JSON object in a file, which messages call what is `said`.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{said} cannot be read: {error.strerror}", hint=hint) from error
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{said} is not JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{said} is no record of sardonyx", hint=hint)
    return cast("dict[str, Any]", found)


def recognised(found: Mapping[str, Any], types: Iterable[type[Any]]) -> type[Any] | None:
    """The type with most fields that has all of them in the document."""
    fitting = [each for each in types if _required(each) <= set(found)]
    return max(fitting, key=lambda each: len(_required(each)), default=None)


def converted(found: Mapping[str, Any], record: type[Any], title: str, said: str, hint: str) -> Any:
    """The record of a type that a document holds; `title` is what its kind is called.

    Raises:
        UsageError: it is of another version of the schema, or not whole.
    """
    ours, theirs = _version(record), found.get("schema_version")
    if ours != theirs:
        raise UsageError(
            f"{said} is {title} of schema version {theirs}, and this sardonyx knows version {ours}",
            hint="write it anew",
        )
    try:
        return msgspec.convert(found, type=record, str_keys=True)  # JSON has no other keys
    except msgspec.ValidationError as error:
        raise UsageError(f"{said} is not a whole record of {title}: {error}", hint=hint) from error


def _required(record: type[Any]) -> set[str]:
    """The fields that every record of a type has."""
    return {each.name for each in _fields(record) if each.default is MISSING and each.default_factory is MISSING}


def _version(record: type[Any]) -> Any:
    """The version of its schema; None for what is only part of a record."""
    return next((each.default for each in _fields(record) if each.name == "schema_version"), None)


def _fields(record: type[Any]) -> tuple[Field[Any], ...]:
    return fields(record)
