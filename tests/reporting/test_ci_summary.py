"""A section of the CI summary: no text breaks the markup, and no number is missing."""

from __future__ import annotations

import re

from reporting.sample_profile import HOSTILE
from sardonyx.reporting import record_kinds
from sardonyx.reporting.gate import Baseline, JobSummary, Outcome, summary_document
from sardonyx.reporting.measures import Reading
from sardonyx.reporting.writers import markdown


def reading(name: str, value: float, low: float | None = None, high: float | None = None) -> Reading:
    return Reading(value, None, low, high, record_kinds.BENCHMARK[name])


NUMBERS = {
    "nodes": reading("nodes", 12),
    "latency_ms": reading("latency_ms", 2.5, 2.25, 3.0),
    "fused.nodes": reading("nodes", 3),
}


def written(summary: JobSummary) -> str:
    return markdown.write(summary_document(summary))


def outcome(text: str, name: str, before: Reading | None = None) -> Outcome:
    asked = record_kinds.BENCHMARK.parse(text, baseline=True)
    return Outcome(asked, NUMBERS[name], before, not asked.tripped(NUMBERS[name], before))


def test_hostile_names_stay_text() -> None:
    text = written(JobSummary(HOSTILE, HOSTILE, True, (), {}, None))
    assert "<b>" not in text
    assert "\x1b" not in text
    assert text.count("\n") == 3  # a heading, an empty line, a sentence
    assert text.startswith("### ❌ evil")


def test_intervals_and_baselines_are_shown() -> None:
    before = Baseline(
        "b.json", "a benchmark", {"latency_ms": reading("latency_ms", 2.0, 1.75, 2.125), "nodes": reading("nodes", 0)}
    )
    outcomes = [
        outcome("latency_ms > baseline", "latency_ms", before.measures["latency_ms"]),
        outcome("nodes>20", "nodes"),
    ]
    text = written(JobSummary("Benchmark", "slower", False, outcomes, NUMBERS, before))
    assert "### ❌ Benchmark: 1 of 2 gates not met" in text
    assert re.search(
        r"\| latency_ms > baseline \| 2\.5 \\\[2\.25, 3\\\] \| 2 \\\[1\.75, 2\.125\\\] \| .* \| ❌ not met \|", text
    )
    assert "| nodes>20 | 12 | 20 |  | ok |" in text
    assert re.search(r"\| latency_ms \| 2\.50 ms .* \| 2\.00 ms .* \| \+25 % \| worse \|", text)
    assert "| nodes | 12 | 0 | +12 | worse |" in text
    assert "fused.nodes" not in text


def test_without_gates_the_status_is_done() -> None:
    assert written(JobSummary("Study", "s", False, (), {}, None)) == "### ✅ Study: done\n\ns\n"
