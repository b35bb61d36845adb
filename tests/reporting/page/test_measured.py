"""Measurements on the page: the sentences of the terminal, the plot, and a hint where nothing was measured."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_bench import point, sample_benchmark
from reporting.sample_run import sample_run
from reporting.sample_tuning import sample_tuning
from sardonyx.reporting.bench import bench_sentence, conditions
from sardonyx.reporting.page.documents import measurements_section
from sardonyx.reporting.run_bundle import RunBundle


def test_without_times_the_page_shows_how_to_get_them() -> None:
    html = str(measurements_section(RunBundle("m", sample_run())).html)
    assert "sardonyx optimize MODEL --run FOLDER" in html
    assert "<svg" not in html


def test_times_are_shown_with_intervals_a_plot_and_the_machine() -> None:
    bench = sample_benchmark(files=2)
    html = str(measurements_section(RunBundle("m", sample_run(), bench=bench)).html)
    assert bench_sentence(bench) in html
    assert "0.877 [0.865, 0.890]" in html
    assert html.count("<svg") == 1
    assert all(fact in html for fact in conditions(bench).values())


def test_each_size_of_a_sweep_has_its_rows() -> None:
    bench = sample_benchmark(point({"seq": 16}, files=2), point({"seq": 128}, files=2), files=2, notes=["busy & loud"])
    html = str(measurements_section(RunBundle("m", sample_run(), bench=bench)).html)
    assert "seq=16" in html
    assert "seq=128" in html
    assert "busy &amp; loud" in html


def test_tuning_is_shown_with_its_changes_and_reasons() -> None:
    html = str(measurements_section(RunBundle("m", replace(sample_run(), tuning=sample_tuning()))).html)
    for text in ("0.780 [0.765, 0.800]", "fuse-attention", "together with 1 other", "the result is the tuned one"):
        assert text in html
    assert '<tr class="marked"><th scope="row">tuned' in html


def test_notes_of_the_run_and_of_its_records_are_shown() -> None:
    run = replace(sample_run(), notes=("a note of the run",))
    html = str(measurements_section(RunBundle("m", run, notes=("profile.json was left out",))).html)
    assert "a note of the run" in html
    assert "profile.json was left out" in html
