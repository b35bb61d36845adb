"""Several models and two compared runs in a browser: the measure is selected by keyboard, and links work."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec import structs

from browser.conftest import Open
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.overview import compared


@pytest.fixture
def several(tmp_path: Path) -> Path:
    first = sample_run_bundle("first")
    path = tmp_path / "several.html"
    path.write_text(render_page([first, structs.replace(first, label="second")]), encoding="utf-8")
    return path


def test_the_measure_is_chosen_with_the_keyboard(open_page: Open, several: Path) -> None:
    page = open_page(several)
    assert page.locator(".overview-matrix:visible").count() == 1
    page.focus("#overview-by-nodes")
    page.keyboard.press("ArrowRight")
    assert page.is_visible(".overview-rewrites")
    page.keyboard.press("ArrowRight")
    assert page.is_visible(".overview-bytes")
    assert page.is_hidden(".overview-nodes")


def test_a_number_links_to_the_rewrites_of_that_pass_in_that_model(open_page: Open, several: Path) -> None:
    page = open_page(several)
    page.click('.overview-nodes a[href="#pass=fold-constants&model=1"]')
    assert page.evaluate("location.hash") == "#pass=fold-constants&model=1"
    assert page.is_visible('article.model[data-model="1"]')
    assert page.is_hidden('article.model[data-model="0"]')
    page.click('.overview-models a[href="#section=verdict&model=0"]')
    assert page.is_visible('article.model[data-model="0"]')


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_screen_and_needs_no_script(open_page: Open, several: Path, width: int) -> None:
    page = open_page(several, width=width, java_script_enabled=False)
    assert page.locator(".overview-matrix:visible").count() == 1
    page.check("#overview-by-bytes")
    assert page.is_visible(".overview-bytes")


def test_a_wide_matrix_scrolls_by_itself(open_page: Open, several: Path) -> None:
    page = open_page(several, width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_changes_come_first_and_link_to_both_runs(open_page: Open, tmp_path: Path) -> None:
    first = sample_run_bundle("monday")
    second = structs.replace(
        first, label="tuesday", run=structs.replace(first.run, after=structs.replace(first.run.after, nodes=180))
    )
    path = tmp_path / "compared.html"
    path.write_text(render_page([first, second], first=compared(first, second)), encoding="utf-8")
    page = open_page(path, width=400)
    assert "187 → 180 nodes" in page.inner_text(".compared-sentence")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.click('section.overview a[href="#section=verdict&model=1"]')
    assert page.is_visible('article.model[data-model="1"]')


@pytest.mark.parametrize(("width", "media"), [(400, "screen"), (1280, "screen"), (794, "print")])
def test_the_plots_of_a_history_lie_side_by_side(open_page: Open, tmp_path: Path, width: int, media: str) -> None:
    first = sample_run_bundle("model")
    dates = ("2026-11-01T08:00:00Z", "2026-11-02T08:00:00Z")
    dated = (structs.replace(first.run.environment, date=date) for date in dates)
    runs = (structs.replace(first.run, environment=environment) for environment in dated)
    path = tmp_path / "history.html"
    path.write_text(render_page([structs.replace(first, run=run) for run in runs]), encoding="utf-8")
    page = open_page(path, width=width)
    page.emulate_media(media=media)  # pyright: ignore[reportArgumentType]
    boxes = [plot.bounding_box() for plot in page.locator(".overview-trends svg").all()]
    assert len(boxes) == 5
    for one, other in itertools.combinations(filter(None, boxes), 2):
        beside = one["x"] + one["width"] <= other["x"] + 1
        assert beside or one["y"] + one["height"] <= other["y"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
