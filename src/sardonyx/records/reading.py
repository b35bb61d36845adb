"""Read records from files; the tag in a file determines the class of its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sardonyx.errors import UsageError
from sardonyx.records import outside
from sardonyx.records.base import Record, header


def kinds() -> dict[str, type[Record]]:
    """Return all record classes by their tags."""
    from sardonyx.records import analysis, bench, comparison, export, inspection, quantization, run, study

    modules = (run, export, inspection, quantization, comparison, analysis, bench, study)
    found: list[Any] = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return {each.record_tag(): each for each in found if issubclass(each, Record) and each is not Record}


def read_file(path: Path, name: str, hint: str) -> Record:
    """Read the record in a file.

    Args:
        path: The path of the file.
        name: The name of the file in error messages.
        hint: The hint in error messages.

    Raises:
        UsageError: If the file cannot be read, or has no record, or one of another version.
    """
    return decode(_bytes(path, name, hint), name, hint)


def decode(data: bytes | str, name: str, hint: str | None = None) -> Record:
    """Read a record of any class from JSON.

    Args:
        data: JSON.
        name: The name of the text in error messages.
        hint: The hint in error messages.

    Raises:
        UsageError: If the text has no record, or one of another version.
    """
    tag = header(data, name, hint).record
    if tag is None:
        raise UsageError(f"{name} is no record of sardonyx: it has no field 'record'", hint=hint)
    kind = kinds().get(tag) or outside.kind_of(tag) if isinstance(tag, str) else None
    if kind is None:
        raise UsageError(f"{name} is a record of an unknown kind: {tag!r}", hint=hint)
    return kind.from_json(data, name, hint)


def tag_of(path: Path) -> object:
    """Return the tag in a file, or None if it has none, is not a JSON object, or cannot be read."""
    try:
        return header(_bytes(path, str(path), None), str(path)).record
    except UsageError:
        return None


def _bytes(path: Path, name: str, hint: str | None) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}", hint=hint) from error
