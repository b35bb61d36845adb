"""The verdict: one sentence with the result, and failures first."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from reporting.sample_bench import compared, point, sample_benchmark
from reporting.sample_run import failed_verdict, sample_run, sample_verdict
from reporting.sample_tuning import sample_tuning
from sardonyx.records.bench import Benchmark, Finding
from sardonyx.records.run import Run
from sardonyx.reporting.page.overview import section
from sardonyx.reporting.run_bundle import RunBundle


def _text(run: Run, bench: Benchmark | None = None) -> str:
    html = str(section(RunBundle("tiny", run, bench=bench)).html)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def _sentence(run: Run, bench: Benchmark | None = None) -> str:
    html = str(section(RunBundle("tiny", run, bench=bench)).html)
    matches = re.search(r'<p class="verdict-sentence">(.*?)</p>', html)
    assert matches is not None
    return matches[1]


def _alarms(run: Run) -> list[str]:
    return re.findall(r'<p class="notice bad">(.*?)</p>', str(section(RunBundle("tiny", run)).html))


def _bench(finding: Finding, ratio: float, low: float, high: float, floor: float = 0.012) -> Benchmark:
    at = point({"batch": 1, "seq": 128}, files=2)
    timed = replace(at.timings[1], against_first=compared(ratio, low, high, finding, floor))
    return sample_benchmark(replace(at, timings=(at.timings[0], timed)), files=2)


@pytest.fixture
def clean() -> Run:
    return replace(sample_run(), rolled_back=())


def test_the_sentence_has_nodes_time_and_verification(clean: Run) -> None:
    text = _sentence(clean, _bench(Finding.FASTER, 0.877, 0.865, 0.89))
    assert text == (
        "tiny has 42 % fewer nodes, runs 12.3 % faster [11.0, 13.5] on 1 thread "
        "and gave the same outputs on 12 trials (12 % of the tolerance used)."
    )
    assert not _alarms(clean)


def test_no_difference_is_reported(clean: Run) -> None:
    bench = _bench(Finding.SAME, 0.995, 0.986, 1.004)
    assert "shows no difference in time (none above 1.4 %)" in _sentence(clean, bench)
    assert "no difference 12.3 → 10.8 ms; ratio 0.995 [0.986, 1.004]" in _text(clean, bench)


def test_caveats_are_beside_the_time(clean: Run) -> None:
    quiet = _bench(Finding.FASTER, 0.877, 0.865, 0.89)
    quiet = replace(quiet, machine=replace(quiet.machine, busy_before=None, busy_during=0.02))
    assert "busy" not in _sentence(clean, quiet)
    busy = replace(quiet, machine=replace(quiet.machine, busy_during=0.77), options={**quiet.options, "threads": 4})
    assert "faster [11.0, 13.5] on 4 threads of a busy machine and" in _sentence(clean, busy)
    card = _text(clean, busy).partition("Time of a run")[2].partition("Outputs")[0]
    assert "4 threads busy machine: other processes used 77 % of the CPU" in card


def test_a_machine_too_noisy_to_tell_is_not_called_no_difference(clean: Run) -> None:
    bench = _bench(Finding.SAME, 0.632, 0.439, 0.911, floor=1.29)
    sentence = _sentence(clean, bench)
    assert "was too noisy to time on 1 thread (differences below a factor of 3.3 are not resolvable here)" in sentence
    assert "no difference" not in sentence + _text(clean, bench).partition("Outputs")[0].partition("95 % interval")[0]


def test_both_times_stand_beside_the_ratio(clean: Run) -> None:
    text = _text(clean, _bench(Finding.FASTER, 0.877, 0.865, 0.89))
    card = text.partition("Time of a run")[2].partition("Outputs")[0]
    assert "12.3 → 10.8 ms; ratio 0.877 [0.865, 0.890]" in card


def test_date_command_machine_threads_versions_and_sizes_are_on_the_first_screen(clean: Run) -> None:
    made = replace(clean.environment, date="2026-11-17T07:50:03Z", command=("sardonyx", "optimize", "a b.onnx"))
    files = replace(clean.source, bytes=17_500_000), replace(clean.result, bytes=250_000)
    run = replace(
        clean, environment=made, source=files[0], result=files[1], after=replace(clean.after, bytes=9_000_000)
    )
    text = _text(run, sample_benchmark(files=2))
    for fact in (
        "Date 2026-11-17 07:50 UTC",
        "Command sardonyx optimize &#39;a b.onnx&#39;",
        "model.onnx (17.5 MB) → small.onnx (250 kB and external data)",
        "Threads 1 while timing",
        f"; {made.platform}",
        "sardonyx 0.1.0, Python 3.11.15, onnx 1.23.2, onnxruntime 1.31.1",
    ):
        assert fact in text, fact
    assert "Date" not in _text(clean)


def test_slower_is_reported(clean: Run) -> None:
    assert "runs 5.0 % slower [3.0, 7.0]" in _sentence(clean, _bench(Finding.SLOWER, 1.05, 1.03, 1.07))


def test_the_result_may_be_any_file_of_a_benchmark_against_the_source(clean: Run) -> None:
    bench = sample_benchmark(labels=("model.onnx", "other.onnx", "small.onnx"))
    assert "shows no difference in time" in _sentence(clean, bench)


def test_a_missing_measurement_is_reported_with_the_command_for_it(clean: Run) -> None:
    assert _sentence(clean).endswith("; its time was not measured.")
    assert "not measured sardonyx optimize MODEL -o SMALL --run FOLDER" in _text(clean)


def test_a_timing_of_tuning_counts_as_a_measurement(clean: Run) -> None:
    tuned = replace(clean, tuning=sample_tuning())
    assert "measured while tuning" in _text(tuned)
    assert "not measured" not in _text(tuned)


def test_a_benchmark_against_another_file_is_not_used(clean: Run) -> None:
    bench = _bench(Finding.FASTER, 0.877, 0.865, 0.89)
    turned = replace(bench, files=tuple(reversed(bench.files)))
    assert "its time was not measured" in _sentence(clean, turned)


def test_bit_for_bit_is_shown_where_nothing_deviates(clean: Run) -> None:
    verdict = sample_verdict()
    same = replace(verdict, outputs=verdict.outputs[1:])
    assert _sentence(replace(clean, verdict=same)).count("on 12 trials (bit for bit)") == 1


def test_equal_and_larger_node_counts_are_reported(clean: Run) -> None:
    assert "has 324 nodes as before" in _sentence(replace(clean, after=clean.before))
    more = replace(clean.before, nodes=400)
    assert "has 23 % more nodes" in _sentence(replace(clean, after=more))
    assert "would have" in _sentence(replace(clean, options={"dry_run": True}))


def test_a_failed_verification_comes_first() -> None:
    run = replace(sample_run(), status="verification-failed", verdict=failed_verdict(), rolled_back=())
    html = str(section(RunBundle("tiny", run)).html)
    assert _alarms(run) == ["Verification failed: pooler_output differs by 0.5 with seed 3. Nothing was written."]
    assert html.index("Verification failed") < html.index("verdict-sentence")
    assert "same outputs" not in _sentence(run)
    assert "would have" in _sentence(run)
    assert "beyond its tolerance" in _text(run)


def test_missing_verification_and_undone_rewrites_come_first(clean: Run) -> None:
    assert _alarms(replace(clean, verdict=None))[0].startswith("Not verified")
    assert _alarms(sample_run()) == ["2 rewrites failed verification and were undone; see “Verification”."]


def test_an_output_without_a_number_is_the_worst(clean: Run) -> None:
    verdict = sample_verdict()
    broken = replace(verdict.outputs[1], max_abs=float("nan"), passed=False)
    run = replace(clean, verdict=replace(verdict, passed=False, outputs=(verdict.outputs[0], broken)))
    assert "∞ at pooler_output , beyond its tolerance" in _text(run)


def test_further_notes_are_listed() -> None:
    run = replace(sample_run(), notes=("the <b>first</b> note",))
    text = _text(run)
    assert "ai.onnx raised 14 → 17: a fusion needed it" in text
    assert "the &lt;b&gt;first&lt;/b&gt; note" in text
    assert "a second note" in _text_of_notes(run)


def _text_of_notes(run: Run) -> str:
    return str(section(RunBundle("tiny", run, notes=("a second note",))).html)


def test_what_a_note_has_in_backquotes_is_code_on_the_page(clean: Run) -> None:
    html = str(
        section(RunBundle("tiny", replace(clean, notes=("set `verify=False`", "`<b>x</b>`", "a lone ` stays")))).html
    )
    assert "set <code>verify=False</code>" in html
    assert "<b>x</b>" not in html
    assert "a lone ` stays" in html
