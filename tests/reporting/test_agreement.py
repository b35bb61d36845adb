"""Outputs that match are described by the share of the tolerance they used, in the same words in every view."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reporting.sample_fleet import sample_fleet
from reporting.sample_run import sample_run, sample_verdict
from sardonyx.records.run import OutputDifference, Verdict
from sardonyx.reporting.fleet import fleet_document, numbers_of
from sardonyx.reporting.page.overview import section
from sardonyx.reporting.pull_request import pull_request
from sardonyx.reporting.run import run_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import tolerance_used, verification
from sardonyx.reporting.writers import markdown

OUTPUT = OutputDifference("y", "float32", 0.0039, 4e-7, 6, 1e-5, 1e-6, True)


def _verdict(*outputs: OutputDifference, **changes: Any) -> Verdict:
    return replace(sample_verdict(), outputs=outputs, **changes)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (replace(OUTPUT, max_abs=0.0), "bit for bit"),
        (replace(OUTPUT, error=0.0039, allowed=0.0325), "12 % of the tolerance used"),
        (replace(OUTPUT, error=0.0039, allowed=39.0), "under 1 % of the tolerance used"),
        (OUTPUT, "only rounding differs"),  # equal in exact arithmetic: no tolerance was needed
        (replace(OUTPUT, error=2.0, allowed=1.0), "only rounding differs"),  # explained by double precision
    ],
)
def test_how_close_outputs_are_is_relative_to_the_tolerance(output: OutputDifference, words: str) -> None:
    assert verification(_verdict(output)) == f"same outputs on 12 trials ({words})"


def test_the_output_that_comes_closest_to_its_tolerance_counts() -> None:
    near, far = replace(OUTPUT, error=0.0039, allowed=0.0078), replace(OUTPUT, max_abs=5.0, error=5.0, allowed=500.0)
    assert tolerance_used(_verdict(near, far)) == tolerance_used(_verdict(far, near)) == 0.5
    assert tolerance_used(_verdict(near, OUTPUT)) is None


def test_the_share_of_a_failed_verification_may_exceed_one() -> None:
    assert tolerance_used(_verdict(replace(OUTPUT, error=3.0, allowed=1.0), passed=False)) == 3.0


def test_every_view_of_a_run_has_the_same_words() -> None:
    run = replace(sample_run(), rolled_back=())
    words = "same outputs on 12 trials (12 % of the tolerance used)"
    fleet = sample_fleet(1)
    row = replace(fleet.models[0], numbers=numbers_of(run))
    views = {
        "text": run_sentence(run),
        "page": str(section(RunBundle("tiny", run)).html),
        "pull request": pull_request([RunBundle("tiny", run)]),
    }
    table = markdown.write(fleet_document(replace(fleet, models=(row,))))
    assert "| verification | tolerance used |" in table
    assert "| same outputs | 12 % |" in table
    for view, text in views.items():
        assert words in text, view
        assert "worst 2.1e-07" not in text, view
