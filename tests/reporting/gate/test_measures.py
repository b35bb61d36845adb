"""Every measure of every kind of record can be gated, printed, compared and put into a history."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.gate.sample_records import records
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.reporting import gate, record_kinds
from sardonyx.reporting.gate import JobSummary, summary_document
from sardonyx.reporting.history import History, Tracked, ends
from sardonyx.reporting.measures import Measure, Reading
from sardonyx.reporting.plots.charts import trend
from sardonyx.reporting.writers import markdown

EVERY = [(kind, measure) for kind in record_kinds.kinds() for measure in kind.declared]
NUMBERS = st.floats(0, 1e12)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return records(tmp_path_factory.mktemp("records"))


@pytest.mark.parametrize("kind", record_kinds.kinds(), ids=lambda kind: kind.title)
def test_every_measure_serves_every_view(kind: gate.RecordKind, every: dict[str, Any]) -> None:
    record = every[kind.title]
    history = History((sample_run_bundle("a"), sample_run_bundle("b")))
    readings = kind.measures(record)
    page = markdown.write(summary_document(JobSummary(kind.title, "", False, [], readings, None))).replace("\\", "")
    for measure in kind.declared:
        reading = readings[measure.name]
        limit = reading.value if reading.known else 0.0
        (met,) = gate.hold([kind.parse(f"{measure.name} > {limit!r}")], kind, record)
        assert met.met == reading.known
        if measure.in_percent:
            kind.parse(f"{measure.name} > 1%")
        assert (f"| {measure.name} | {reading.written} |" in page) == reading.known
        assert (reading.change(reading), reading.verdict(reading)) == ("·" if reading.known else "", "")
        if reading.known:
            tracked = Tracked(measure, lambda _bundle: kind.part(record, ""))
            assert ends(history, tracked).endswith(f" → {reading.short}")
            assert measure.heading in trend(history, tracked).file()


def test_names_are_unique_within_a_kind_and_mean_the_same_where_they_are_common() -> None:
    meanings: dict[str, set[str]] = {}
    for kind in record_kinds.kinds():
        assert len(kind.names) == len(kind.declared)
        for measure in kind.declared:
            if measure.common:
                meanings.setdefault(measure.name, set()).add(str(measure.unit.write(0.5)))
    assert all(len(units) == 1 for units in meanings.values())


@given(st.sampled_from([measure for _kind, measure in EVERY if measure.better]), NUMBERS, NUMBERS)
def test_better_is_in_the_declared_direction_and_never_claimed_of_a_time_without_an_interval(
    measure: Measure, one: float, two: float
) -> None:
    first, second = Reading(one, measure=measure), Reading(two, measure=measure)
    claim = second.verdict(first)
    if one == two or measure.unit.is_time:
        assert claim == ""
    else:
        assert claim == ("better" if (two < one) == (measure.better == "lower") else "worse")


@given(st.sampled_from([measure for _kind, measure in EVERY]), NUMBERS, NUMBERS)
def test_intervals_that_overlap_are_neither_better_nor_worse(measure: Measure, one: float, two: float) -> None:
    low, high = min(one, two), max(one, two)
    assert Reading(one, None, low, high, measure).verdict(Reading(two, None, low, high, measure)) == ""


def test_an_unknown_number_is_a_dash_and_meets_no_gate() -> None:
    unknown = record_kinds.RUN["latency_ratio"].read(None)
    assert (unknown.written, math.isnan(unknown.value)) == ("–", True)
    assert record_kinds.RUN.parse("latency_ratio < 1").tripped(unknown)
