"""Using the plots of the page: the map, the graph of a module, memory over time."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Open


def part(page: Page, name: str) -> Locator:
    section = page.locator(f"[data-section={name}]")
    section.scroll_into_view_if_needed()
    return section


def widths(host: Locator) -> list[float]:
    return host.locator(".map-bar rect").evaluate_all(
        "all => all.map((one) => Math.round(one.getBoundingClientRect().width))"
    )


@pytest.mark.parametrize("name", ["transformer", "deep"])
def test_the_map_shows_another_measure_and_another_scale(opened: Open, name: str) -> None:
    host = part(opened(name), "map")
    expect(host.locator(".map-panel")).to_have_count(2)
    nodes = widths(host)
    host.get_by_role("button", name="Bytes").click()
    expect(host.get_by_role("button", name="Bytes")).to_have_attribute("aria-pressed", "true")
    by_bytes = widths(host)
    assert by_bytes != nodes
    host.get_by_role("button", name="Nodes").click()
    assert widths(host) == nodes
    host.get_by_role("button", name="Each in full width").click()
    assert widths(host) != nodes


def test_the_map_shows_time_only_where_it_was_measured(opened: Open) -> None:
    host = part(opened("transformer"), "map")
    host.get_by_role("button", name="Time").click()
    expect(host.locator(".map-panel").first).to_contain_text("ms")
    expect(part(opened("deep"), "map").get_by_role("button", name="Time")).to_be_disabled()


def test_a_bar_shows_its_numbers_and_selects_its_module_by_keyboard(opened: Open) -> None:
    page = opened("transformer")
    host = part(page, "map")
    host.locator(".map-bar[tabindex='0']").first.focus()
    page.keyboard.press("ArrowDown")
    expect(host.locator(".map-status")).to_contain_text("nodes")
    page.keyboard.press("Enter")
    assert "#module=" in page.url


def test_a_module_graph_is_shown_and_links_to_its_children(opened: Open) -> None:
    page = opened("transformer", "#module=encoder.layer.0")
    detail = page.locator(".modules-detail")
    expect(detail.locator("svg").first).to_be_visible()
    inside = detail.locator("svg [role=button]").first
    inside.focus()
    page.keyboard.press("Enter")
    expect(detail.locator("h3 .path")).not_to_have_text("encoder.layer.0")


def test_attention_is_shown_with_its_cost_and_memory_is_plotted(opened: Open) -> None:
    host = part(opened("transformer"), "attention")
    expect(host.locator("tbody tr").first).to_contain_text("encoder.layer")
    expect(host.locator(".attention-timeline svg")).to_be_visible()
