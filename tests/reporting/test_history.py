"""Runs of one model at different times: recognized by hash or path, in order, with intervals and breaks."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from reporting.sample_run import failed_verdict
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.reporting.history import RECENT_RUNS, histories, recent
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.overview import overview
from sardonyx.reporting.pull_request import pull_request
from sardonyx.reporting.report import report
from sardonyx.reporting.run_bundle import RunBundle


def _at(day: int, nodes: int = 187, *, path: str = "model.onnx", sha256: str | None = "ab" * 32) -> RunBundle:
    """A run of a model on a day of November."""
    bundle = sample_run_bundle(f"model ({day})")
    run = bundle.run
    dated = replace(run.environment, date=f"2026-11-{day:02}T08:00:00Z")
    run = replace(run, environment=dated, after=replace(run.after, nodes=nodes))
    run = replace(run, source=replace(run.source, path=path, sha256=sha256))
    return replace(bundle, run=run, name=str(day))


@pytest.mark.medium
def test_runs_of_one_model_have_the_same_hash_or_the_same_path() -> None:
    retrained = _at(3, sha256="cd" * 32)
    moved = _at(1, path="elsewhere/renamed.onnx")
    other = _at(2, path="other.onnx", sha256="ef" * 32)
    first, second = histories([retrained, _at(2), other, moved])
    assert [run.name for run in first.runs] == ["3", "2", "1"]
    assert first.model == "model"
    assert [run.name for run in second.runs] == ["2"]


def test_results_for_two_targets_are_two_models() -> None:
    plain, other = _at(2), _at(3)
    other = replace(other, run=replace(other.run, options=other.run.options | {"target": "other"}))
    assert [[run.name for run in history.runs] for history in histories([plain, other])] == [["2"], ["3"]]


@pytest.mark.medium
def test_runs_without_a_date_are_models_of_their_own() -> None:
    assert [len(history.runs) for history in histories([sample_run_bundle("a"), sample_run_bundle("b")])] == [1, 1]


@pytest.mark.medium
def test_a_page_has_a_line_a_run_and_the_sections_of_the_newest() -> None:
    bundles = [_at(day, 200 - day) for day in range(1, 12)]
    page = overview(bundles)
    assert page is not None
    assert page.title == "History of model"
    html = " ".join(str(page.html).split())
    dates = re.findall(r"2026-11-(\d\d) 08:00 UTC", html.partition("<tbody>")[2].partition("</tbody>")[0])
    assert dates == [f"{day:02}" for day in range(11, 0, -1)]
    assert html.count('href="#section=verdict&amp;model=') == RECENT_RUNS
    assert '<a href="#section=verdict&amp;model=0">2026-11-11 08:00 UTC</a>' in html
    assert html.count("0.877 [0.865, 0.890]") >= 11
    assert html.count("<figure>") == 5
    assert "All models" not in html
    assert len(recent(bundles)) == RECENT_RUNS
    assert [run.name for run in recent(bundles)][:2] == ["11", "10"]


def test_several_models_have_a_row_each_before_their_histories_and_the_passes() -> None:
    other = _at(2, path="other.onnx", sha256="ef" * 32)
    page = overview([_at(1, 300), _at(2, 187), other])
    assert page is not None
    html = " ".join(str(page.html).split())
    rows = html.partition("overview-trends")[0]
    assert rows.count('<th scope="row">') == 2
    assert "324 → 187" in rows
    assert "324 → 300" not in html
    assert html.index("History of model") < html.index("Which pass did what where")


def test_times_under_other_conditions_are_not_joined() -> None:
    first, second, third = (_at(day) for day in (1, 2, 3))
    assert second.bench is not None
    moved = replace(second, bench=replace(second.bench, options={**second.bench.options, "threads": 8}))
    text = pull_request([first, moved, third])
    assert "times of 2026-11-01 08:00 UTC and 2026-11-02 08:00 UTC are not comparable: threads 1 and 8" in text
    page = overview([first, moved, third])
    joined = overview([first, second, third])
    assert page is not None
    assert joined is not None
    assert str(page.html).count('class="own"') == str(joined.html).count('class="own"') - 2


def test_markdown_has_the_lines_their_trend_and_the_newest_run() -> None:
    failed = _at(2, 250)
    failed = replace(failed, run=replace(failed.run, verdict=failed_verdict()))
    text = pull_request([_at(1, 300), failed, _at(3, 187)])
    table = text.partition("### ✅")[0]
    assert table.index("2026-11-03") < table.index("2026-11-02") < table.index("2026-11-01")
    assert "nodes: █▅▁ 300 → 187" in table
    assert "verification failed" in table
    assert text.count("### ✅") == 1


def test_pictures_and_titles() -> None:
    bundles = [_at(1, 300), _at(2, 187)]
    files = report([bundle.run for bundle in bundles], format="svg").files
    assert {"history-1-model/nodes.svg", "history-1-model/bytes.svg"} <= files.keys()
    assert "<title>model, 2 runs · Sardonyx</title>" in report([bundle.run for bundle in bundles]).text
    assert render_page(bundles).count('<article class="model"') == 2


def test_a_run_on_a_busy_machine_is_noted() -> None:
    quiet, busy = _at(1), _at(2)
    assert busy.bench is not None
    busy = replace(busy, bench=replace(busy.bench, machine=replace(busy.bench.machine, busy_during=0.5)))
    text = pull_request([quiet, busy])
    assert "timed while other processes used much of the CPU: 2026-11-02 08:00 UTC (50 %)\n" in text
