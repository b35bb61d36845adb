"""The page of a quantization: the cards, the plots with their tooltips, and the module tree with precisions."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from browser.conftest import Open


@pytest.mark.parametrize("width", [1280, 400])
def test_a_quantization_has_its_numbers_plots_and_tree(opened: Open, width: int) -> None:
    page = opened("quantized", width=width)
    section = page.locator("[data-section=precision]")
    expect(section.locator(".card")).to_have_count(4)
    expect(section.locator("svg.front .ring title")).to_contain_text("time 0.60 × [0.58, 0.62]")
    section.get_by_text("of 2 modules in each precision").click()
    expect(section.get_by_role("cell", name="relative L2 0.02 alone")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only plots and tables scroll"
    tree = page.locator("[data-section=modules]")
    tree.get_by_role("link", name="encoder").click()
    expect(tree.locator("tr[aria-selected=true] .chip")).to_have_text("int8")
    expect(tree.locator(".modules-detail")).to_contain_text("by itself")
    expect(tree.locator(".modules-detail")).not_to_contain_text("rewritten")
