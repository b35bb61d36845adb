"""A Benchmark in every format: sentences follow the intervals, and no name breaks the markup."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_bench import LABELS, compared, point, sample_benchmark, timing
from reporting.written import in_markdown, in_terminal
from sardonyx.records.bench import Benchmark, Comparison, Finding
from sardonyx.reporting.bench import bench_csv, bench_document, bench_sentence, milliseconds, verdict
from sardonyx.reporting.document import View
from sardonyx.reporting.formatting import visible
from sardonyx.reporting.plots.charts import BOX_LEFT, BOX_RIGHT, BOX_WIDTH, boxplot_svg

GOLDEN = Path(__file__).parent / "golden" / "bench.txt"
SVG = "{http://www.w3.org/2000/svg}"
SWEEP = (point({"batch": 1, "seq": 16}, 0.1), point({"batch": 1, "seq": 512}, 5.0))


@pytest.mark.parametrize(
    ("against", "message"),
    [
        (compared(0.877, 0.865, 0.89, Finding.FASTER), "b is 12.3 % faster than a [11.0, 13.5]"),
        (compared(1.05, 1.04, 1.062, Finding.SLOWER), "b is 5.0 % slower than a [4.0, 6.2]"),
        (compared(3.5, 3.0, 4.0, Finding.SLOWER), "b is 250 % slower than a [200, 300]"),
        (compared(1.004, 0.994, 1.014, Finding.SAME), "no difference between b and a: within 1.4 % either way"),
        (compared(1.001, 0.999, 1.002, Finding.SAME, 0.03), "no difference between b and a: within 3.0 % either way"),
        (
            compared(0.98, 0.875, 1.097, Finding.SAME, 0.05),
            "too noisy to tell b and a apart: differences below 17.6 % are not resolvable here",
        ),
        (
            compared(0.632, 0.439, 0.911, Finding.SAME, 1.29),
            "too noisy to tell b and a apart: differences below a factor of 3.3 are not resolvable here",
        ),
    ],
)
def test_a_verdict_claims_what_the_interval_allows(against: Comparison, message: str) -> None:
    assert verdict(timing("b", 10, against), timing("a", 11)) == message


@pytest.mark.parametrize(
    ("seconds", "message"),
    [(12.3456, "12,346"), (0.12345, "123"), (0.012345, "12.3"), (0.0012345, "1.23"), (1.23e-5, "0.012"), (None, "?")],
)
def test_times_have_enough_digits(seconds: float | None, message: str) -> None:
    assert milliseconds(seconds) == message


def test_the_summary_line_matches_the_timings() -> None:
    assert bench_sentence(sample_benchmark(files=2)) == "small.onnx is 12.3 % faster than model.onnx [11.0, 13.5]"
    assert bench_sentence(sample_benchmark()).endswith(
        "; no difference between tiny.onnx and model.onnx: within 1.4 % either way"
    )
    assert bench_sentence(sample_benchmark(*SWEEP)) == (
        "small.onnx against model.onnx, by size: faster at 2 of 2 (by 12.3 %); "
        "tiny.onnx against model.onnx, by size: no difference at 2 of 2"
    )
    assert bench_sentence(sample_benchmark(files=1)) == (
        "model.onnx takes 12.3 ms (median of 5 rounds); two sessions of it are within 1.2 %"
    )


def test_sizes_that_were_too_noisy_are_counted_apart() -> None:
    noisy = compared(0.98, 0.875, 1.097, Finding.SAME, 0.05)
    first, second = SWEEP
    second = replace(second, timings=(*second.timings[:2], replace(second.timings[2], against_first=noisy)))
    sentence = bench_sentence(sample_benchmark(first, second))
    assert sentence.endswith("by size: no difference at 1 of 2, too noisy to tell at 1 of 2")


def test_the_page_is_the_golden_one() -> None:
    text = in_terminal(bench_document, sample_benchmark(*SWEEP, notes=["mind this"]), View(verbose=True))
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_page_shows_each_file_and_how_it_was_measured() -> None:
    text = in_terminal(bench_document, sample_benchmark(notes=["mind this"]))
    assert (
        "machine   Some CPU @ 2 GHz, 8 cores, 16.0 GB, governor performance, 2 % of the CPU was used by other processes"
        in text
    )
    assert "settings  1 thread, provider cpu, runtime optimizations all, one process, wall clock" in text
    row = next(" ".join(line.split()) for line in text.splitlines() if line.strip().startswith("small.onnx"))
    assert row == "small.onnx 10.8 10.7 … 11.0 0.877 [0.865, 0.890] faster 5 320 25.0 450 MB"
    assert "\nNotes\n  mind this\n" in text
    assert text.splitlines()[-1] == bench_sentence(sample_benchmark())


def test_sizes_are_separated_and_missing_measurements_have_no_column() -> None:
    text = in_terminal(bench_document, sample_benchmark(*SWEEP))
    assert "sizes     batch=1\n" in text
    assert "\n  at seq=16: small.onnx is 12.3 % faster than model.onnx [11.0, 13.5]\n" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  seq=")] == ["seq=16", "seq=512"]
    bare = point({"seq": 1}, files=1)
    without = replace(bare, timings=tuple(replace(each, starts=()) for each in bare.timings))
    alone = in_terminal(bench_document, sample_benchmark(without, files=1))
    assert "load ms" not in alone
    assert "time /" not in alone
    assert "governor" not in in_terminal(bench_document, _quiet_machine())


def _quiet_machine() -> Benchmark:
    benchmark = sample_benchmark()
    unknown: dict[str, Any] = dict.fromkeys(
        ("cpu", "memory_bytes", "governor", "load_before", "load_after", "busy_before", "busy_during")
    )
    return replace(benchmark, machine=replace(benchmark.machine, **unknown))


def test_verdicts_are_coloured_only_on_request() -> None:
    assert "\x1b" not in in_terminal(bench_document, sample_benchmark(*SWEEP), View())
    assert "\x1b[32msmall.onnx is 12.3 % faster" in in_terminal(bench_document, sample_benchmark(*SWEEP), color=True)


def test_markdown_is_a_page_with_a_table() -> None:
    page = in_markdown(bench_document, sample_benchmark(*SWEEP, notes=["a|b"]))
    assert page.startswith("# model.onnx and small.onnx and tiny.onnx\n\n**")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 6
    assert "- a\\|b" in page
    assert "- at seq=512: small.onnx is 12.3 % faster than model.onnx \\[11.0, 13.5\\]" in page


def test_csv_has_every_round_in_full() -> None:
    benchmark = sample_benchmark(*SWEEP)
    rows = list(csv.DictReader(io.StringIO(bench_csv(benchmark))))
    assert len(rows) == 2 * 3 * 5
    first = repr(benchmark.points[0].timings[0].seconds[0])
    assert rows[0] == {"file": "model.onnx", "batch": "1", "seq": "16", "round": "1", "seconds": first}
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(
        sum(seconds for each in benchmark.points for timing in each.timings for seconds in timing.seconds)
    )


def test_the_picture_has_a_box_for_each_file_at_each_size_within_its_axes() -> None:
    root = ElementTree.fromstring(boxplot_svg(sample_benchmark(*SWEEP)))
    boxes = root.findall(f".//{SVG}rect[@class='box']")
    assert len(boxes) == 6
    for box in boxes:
        assert float(box.attrib["x"]) >= BOX_LEFT
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= BOX_WIDTH - BOX_RIGHT
    ratio = float(boxes[1].attrib["width"]) / float(boxes[0].attrib["width"])
    assert ratio == pytest.approx(10.8 / 12.3, rel=0.01)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert texts.count("milliseconds a run") == 2
    assert sum("1 round up to" in text for text in texts) == 6  # the outlier is beyond the scale
    assert "10.8 ms, 0.877 [0.865, 0.890]" in [
        text.text for text in ElementTree.fromstring(boxplot_svg(sample_benchmark())).iter(f"{SVG}text")
    ]


@given(st.lists(st.floats(1e-7, 10), min_size=1, max_size=8))
def test_any_times_can_be_drawn(seconds: list[float]) -> None:
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 2]
    each = replace(
        timing("a", 1), seconds=tuple(seconds), median=middle, low_quartile=ordered[0], high_quartile=ordered[-1],
        low_whisker=ordered[0], high_whisker=ordered[-1],
    )  # fmt: skip
    root = ElementTree.fromstring(boxplot_svg(sample_benchmark(replace(SWEEP[0], timings=(each,)), files=1)))
    assert len(root.findall(f".//{SVG}rect[@class='box']")) == 1


@given(st.lists(st.text(min_size=1, max_size=30), min_size=3, max_size=3, unique=True))
def test_no_name_breaks_the_markup(labels: list[str]) -> None:
    benchmark = sample_benchmark(labels=labels, notes=[labels[0]])
    text = in_terminal(bench_document, benchmark) + bench_sentence(benchmark)
    assert all(char.isprintable() for char in text.replace("\n", ""))
    ElementTree.fromstring(boxplot_svg(benchmark))
    lines = [line for line in in_markdown(bench_document, benchmark).splitlines() if line.startswith("|")]
    assert len({line.replace("\\\\", "").replace("\\|", "").count("|") for line in lines}) == 1
    rows = csv.DictReader(io.StringIO(bench_csv(benchmark), newline=""))
    assert {row["file"] for row in rows} == {visible(_quoted(label)) for label in labels}


def _quoted(label: str) -> str:
    return f"'{label}" if label.startswith(("=", "+", "-", "@")) else label


def test_the_same_record_gives_the_same_bytes() -> None:
    assert boxplot_svg(sample_benchmark()) == boxplot_svg(Benchmark.from_json(sample_benchmark().to_json()))
    assert LABELS[0] in boxplot_svg(sample_benchmark())
