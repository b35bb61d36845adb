"""Several models on one page: a row each, and a matrix of passes; two runs and their differences."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from reporting.sample_run import failed_verdict
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.overview import compared, overview
from sardonyx.reporting.run_bundle import RunBundle

HOSTILE = '"><img src=x onerror=alert(1)><script>'


def rendered(*bundles: RunBundle) -> str:
    made = overview(bundles)
    assert made is not None
    return " ".join(str(made.html).split())


def test_one_model_needs_no_overview() -> None:
    assert overview([sample_run_bundle()]) is None


def test_each_model_has_a_row_with_a_link_its_numbers_and_its_verification() -> None:
    timed, untimed = sample_run_bundle("timed"), structs.replace(sample_run_bundle("untimed"), bench=None)
    html = rendered(timed, untimed)
    assert '<a href="#section=verdict&amp;model=0">timed</a>' in html
    assert '<a href="#section=verdict&amp;model=1">untimed</a>' in html
    assert html.count("324 → 187") == 2
    assert html.count("0.877 [0.865, 0.890]") == 1
    assert html.count("not timed") == 1
    assert html.count("same outputs on 12 trials") == 2
    assert html.count("2 rewrites rolled back") == 2


def test_a_failed_verification_is_highlighted() -> None:
    whole = sample_run_bundle()
    html = rendered(whole, structs.replace(whole, run=structs.replace(whole.run, verdict=failed_verdict())))
    assert html.count('<span class="bad">verification failed') == 1


def test_the_matrix_lists_active_passes_in_three_measures() -> None:
    first, second = sample_run_bundle("a"), sample_run_bundle("b")
    only = structs.replace(
        second, run=structs.replace(second.run, passes=second.run.passes[1:])
    )  # a pass that did not run
    html = rendered(first, only)
    assert html.count('class="scroll overview-matrix') == 3
    assert html.count('type="radio"') == 3
    assert html.count(" checked>") == 1
    nodes = html.partition("overview-nodes")[2].partition("overview-rewrites")[0]
    assert ">−25</a>" in nodes
    assert nodes.count(">−100</a>") == 2
    assert nodes.count('<td class="num soft">–</td>') == 1
    assert "merge-reshapes" not in nodes  # matched nothing anywhere
    assert "−137" in nodes  # all passes of the first
    assert 'href="#pass=fold-constants&amp;model=1"' in nodes


def test_the_cell_colour_follows_the_share_and_shows_the_number() -> None:
    html = rendered(sample_run_bundle("a"), sample_run_bundle("b"))
    heats = dict(re.findall(r'style="--heat: (\d+)%" title="([\w-]+) on a: change in nodes', html))
    strong = {name: int(heat) for heat, name in heats.items()}
    assert strong["fold-constants"] > strong["eliminate-identity"] > 0


@pytest.mark.slow
def test_labels_from_files_are_text() -> None:
    for html in (
        rendered(sample_run_bundle(HOSTILE), sample_run_bundle("b")),
        str(compared(sample_run_bundle(HOSTILE), sample_run_bundle("b")).html),
    ):
        assert "<img" not in html
        assert "<script" not in html


@pytest.mark.slow
def test_the_page_of_several_models_begins_with_the_overview() -> None:
    page = render_page([sample_run_bundle("one"), sample_run_bundle("two")])
    assert page.index('data-section="overview"') < page.index('<article class="model" data-model="0"')
    assert 'data-section="overview"' not in render_page([sample_run_bundle("one")])


def test_the_page_of_two_runs_begins_with_what_changed() -> None:
    first = sample_run_bundle("monday")
    run = structs.replace(first.run, after=structs.replace(first.run.after, nodes=180))
    second = structs.replace(first, label="tuesday", run=run)
    page = render_page([first, second], first=compared(first, second))
    assert page.index('data-section="compared"') < page.index('<article class="model" data-model="0"')
    assert "187 → 180 nodes (−7)" in page
    assert 'data-section="overview"' not in page
