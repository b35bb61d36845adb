"""The page of many models in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.conftest import Open
from reporting.sample_fleet import sample_fleet
from sardonyx.reporting.page import render_fleet


@pytest.mark.slow
def test_the_page_of_ten_thousand_models_opens(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "index.html"
    file.write_text(render_fleet(sample_fleet(10_000), ("tables/summary.csv",)))
    page = open_page(file, width=400)
    titles = page.locator("main h2").all_inner_texts()
    expected = ["Summary", "Models", "Share of nodes saved, 9,500 models", "By family", "500 models failed", "By pass"]
    assert titles == [*expected, "Missed fusions", "Memory", "Conditions"]
    assert page.locator("section#section\\=models a").first.get_attribute("href", timeout=1000)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "only tables scroll sideways"
    assert page.locator("svg.histogram rect").count() == 21
