"""Records read back from files: the tag in a file tells which kind of record it holds."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import UsageError
from sardonyx.records.base import Record, header


def kinds() -> dict[str, type[Record]]:
    """Every kind of record, by its tag."""
    from sardonyx.records import (  # only here: a command that reads no record need not import all of them
        analysis,
        bench,
        comparison,
        export,
        extraction,
        inspection,
        module_graph,
        profile,
        run,
        study,
    )

    known: tuple[type[Record], ...] = (
        run.Run,
        run.Verdict,
        export.Export,
        inspection.Inspection,
        inspection.ModuleInspection,
        inspection.Opportunities,
        inspection.Adoption,
        extraction.Extraction,
        comparison.Comparison,
        module_graph.HierarchyDag,
        analysis.Analysis,
        analysis.Decomposed,
        bench.Benchmark,
        profile.Profile,
        study.Study,
    )
    return {each.record_tag(): each for each in known}


def read_file(path: Path, name: str, hint: str) -> Record:
    """The record in a file.

    Args:
        path: of the file.
        name: what an error calls it.
        hint: what an error proposes.

    Raises:
        UsageError: the file cannot be read, or holds no record, or one of another version.
    """
    data = _bytes(path, name, hint)
    tag = header(data, name, hint).record
    if tag is None:
        raise UsageError(f"{name} is no record of sardonyx: it has no field 'record'", hint=hint)
    kind = kinds().get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise UsageError(f"{name} is of a kind that this sardonyx does not know: {tag!r}", hint=hint)
    return kind.from_json(data, name, hint)


def tag_of(path: Path) -> object:
    """The tag in a file; None if it has none, or is no JSON object, or cannot be read."""
    try:
        return header(_bytes(path, str(path), None), str(path)).record
    except UsageError:
        return None


def _bytes(path: Path, name: str, hint: str | None) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}", hint=hint) from error
