"""A record that was written before, read to be compared with: which kind it is, and the numbers in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, cast

import msgspec

from sardonyx.errors import UsageError
from sardonyx.gate import models
from sardonyx.gate.kinds import Kind, Measures

_HOW = "a baseline is a record that `--record FILE` or `--json` of a sardonyx command wrote"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The numbers of an earlier record that one of a given kind can be compared with."""

    path: str
    title: str  # of its kind
    measures: Measures

    def lacks(self, names: Collection[str]) -> str | None:
        """The first of the names that it has no number for."""
        return next((name for name in names if name not in self.measures or not self.measures[name].known), None)


def kinds() -> tuple[Kind, ...]:
    """Every kind of record there is."""
    from sardonyx.gate import measured  # only here: a command without a baseline need not wait for all records

    return (
        models.RUN,
        models.VERDICT,
        models.EXPORT,
        models.INSPECTION,
        models.MODULE,
        models.OPPORTUNITIES,
        models.EXTRACTION,
        models.ADOPTION,
        models.COMPARISON,
        measured.ANALYSIS,
        measured.DECOMPOSED,
        measured.BENCHMARK,
        measured.PROFILE,
        measured.STUDY,
    )


def read(path: Path, wanted: Kind) -> Baseline:
    """The record in a file, as a baseline for one of the wanted kind.

    Raises:
        UsageError: the file cannot be read, or is no record of ours, or one of another version.
    """
    document = _document(path)
    kind = _kind_of(document)
    if kind is None:
        raise UsageError(f"--baseline {path} is no record of sardonyx", hint=_HOW)
    ours, theirs = _version(kind.record), document.get("schema_version")
    if ours != theirs:
        raise UsageError(
            f"--baseline {path} is {kind.title} of schema version {theirs}, and this sardonyx knows version {ours}",
            hint="write the baseline anew",
        )
    try:
        record = msgspec.convert(document, type=kind.record)
        measures = kind.measures(record)
    except (msgspec.ValidationError, IndexError) as error:
        raise UsageError(f"--baseline {path} is not a whole record of {kind.title}: {error}", hint=_HOW) from error
    if kind is not wanted:
        shared = set(kind.common) & set(wanted.common)
        measures = {name: measure for name, measure in measures.items() if name in shared}
    return Baseline(str(path), kind.title, measures)


def _document(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--baseline {path} cannot be read: {error.strerror}", hint=_HOW) from error
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--baseline {path} is not JSON: {error}", hint=_HOW) from error
    if not isinstance(document, dict):
        raise UsageError(f"--baseline {path} is no record of sardonyx", hint=_HOW)
    return cast("dict[str, Any]", document)


def _kind_of(document: dict[str, Any]) -> Kind | None:
    """The kind with most fields that has all of them in the document, since records do not name themselves."""
    fitting = [kind for kind in kinds() if _required(kind.record) <= set(document)]
    return max(fitting, key=lambda kind: len(_required(kind.record)), default=None)


def _required(record: type[Any]) -> set[str]:
    """The fields that every record of a type has."""
    return {each.name for each in _fields(record) if each.default is MISSING and each.default_factory is MISSING}


def _version(record: type[Any]) -> Any:
    """The version of its schema; None for what is only part of a record."""
    return next((each.default for each in _fields(record) if each.name == "schema_version"), None)


def _fields(record: type[Any]) -> tuple[Field[Any], ...]:
    return fields(record)
