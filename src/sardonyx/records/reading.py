"""Read records from files; the tag in a file determines the class of its record."""

from __future__ import annotations

from pathlib import Path

from sardonyx.errors import UsageError
from sardonyx.records import outside
from sardonyx.records.base import Record, header


def kinds() -> dict[str, type[Record]]:
    """Return all record classes by their tags."""
    from sardonyx.records import analysis, bench, comparison, export, inspection, quantization, run, study
    from sardonyx.records import bench as placement
    from sardonyx.records import bench as profile
    from sardonyx.records import comparison as location
    from sardonyx.records import export as extraction
    from sardonyx.records import inspection as module_graph
    from sardonyx.records import study as fleet

    classes: tuple[type[Record], ...] = (
        run.Run,
        run.Verdict,
        export.Export,
        inspection.Inspection,
        inspection.ModuleInspection,
        inspection.Opportunities,
        inspection.Adoption,
        extraction.Extraction,
        quantization.Quantization,
        location.Location,
        comparison.Comparison,
        module_graph.HierarchyDag,
        placement.Placement,
        analysis.Analysis,
        analysis.Decomposed,
        bench.Benchmark,
        profile.Profile,
        study.Study,
        fleet.Fleet,
    )
    return {record.record_tag(): record for record in classes}


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
