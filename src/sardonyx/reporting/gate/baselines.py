"""A record that was written before, read to be compared with: which kind it is, and the numbers in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sardonyx.errors import UsageError
from sardonyx.records import reading
from sardonyx.reporting.gate import model_metrics
from sardonyx.reporting.gate.kinds import Measures, RecordKind

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


def kinds() -> tuple[RecordKind, ...]:
    """Every kind of record that has numbers to compare."""
    from sardonyx.reporting.gate import (
        measurement_metrics,  # only here: a command without a baseline need not wait for all records
    )

    return (
        model_metrics.RUN,
        model_metrics.VERDICT,
        model_metrics.EXPORT,
        model_metrics.INSPECTION,
        model_metrics.MODULE,
        model_metrics.OPPORTUNITIES,
        model_metrics.EXTRACTION,
        model_metrics.ADOPTION,
        model_metrics.COMPARISON,
        measurement_metrics.ANALYSIS,
        measurement_metrics.DECOMPOSED,
        measurement_metrics.BENCHMARK,
        measurement_metrics.PROFILE,
        measurement_metrics.STUDY,
    )


def read(path: Path, wanted: RecordKind) -> Baseline:
    """The record in a file, as a baseline for one of the wanted kind.

    Raises:
        UsageError: the file cannot be read, or is no record of ours, or one of another version.
    """
    said = f"--baseline {path}"
    record = reading.read_file(path, said, _HOW)
    kind = next((each for each in kinds() if each.record is type(record)), None)
    if kind is None:
        raise UsageError(f"{said} is {record.title}, which has no numbers to compare", hint=_HOW)
    try:
        measures = kind.measures(record)
    except IndexError as error:
        raise UsageError(f"{said} is not a complete record of {kind.title}: {error}", hint=_HOW) from error
    if kind is not wanted:
        shared = set(kind.common) & set(wanted.common)
        measures = {name: measure for name, measure in measures.items() if name in shared}
    return Baseline(str(path), kind.title, measures)
