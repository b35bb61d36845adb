"""Using the module tree: search, sort, open, close, links, keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Open
from sardonyx.records.run import Run

DEEP_MODULE = "model.layers.7.attention"


def tree(page: Page) -> Locator:
    page.locator("[data-section=modules]").scroll_into_view_if_needed()
    table = page.locator("[data-section=modules] table[role=treegrid]")
    table.wait_for()
    return table


def rows(page: Page) -> Locator:
    return tree(page).locator("tbody tr[data-line]")


def tool(page: Page, name: str) -> Locator:
    return page.locator(f"[data-section=modules] [data-tool={name}]")


def column(page: Page, place: int) -> list[str]:
    return rows(page).locator(f"td:nth-of-type({place})").all_inner_texts()


def run_of(folder: Path) -> Run:
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)


@pytest.fixture(params=["transformer", "deep"])
def page(request: pytest.FixtureRequest, opened: Open) -> Page:
    return opened(request.param)


def test_it_expands_to_all_levels_and_collapses_to_one(page: Page) -> None:
    first = rows(page).count()
    tool(page, "expand").click()
    all_of_it = rows(page).count()
    assert all_of_it > first
    tool(page, "collapse").click()
    assert rows(page).count() < first + 1
    tool(page, "depth").select_option("2")
    assert rows(page).count() <= all_of_it
    levels = {row.get_attribute("aria-level") for row in rows(page).all()[:60]}
    assert levels <= {"1", "2", "3"}


def test_search_shows_matches_and_their_ancestors(page: Page) -> None:
    tool(page, "search").fill("attention")
    expect(page.locator(".modules-status")).to_have_text(re.compile(r"[\d,]+ modules found"))
    assert rows(page).locator("mark").count() > 0
    tool(page, "search").fill("no such module at all")
    expect(page.locator(".modules-status")).to_have_text("0 modules found")
    tool(page, "search").press("Escape")
    expect(page.locator(".modules-status")).to_have_text("")
    assert tool(page, "search").input_value() == ""


def test_sorting_by_nodes_is_descending_then_ascending_then_off(page: Page) -> None:
    tool(page, "expand").click()
    before = rows(page).nth(1).inner_text()
    head = tree(page).locator("th[data-column=nodes_before]")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") is None
    assert rows(page).nth(1).inner_text() == before


def test_siblings_are_sorted_by_number(opened: Open) -> None:
    page = opened("transformer")
    tool(page, "collapse").click()
    tree(page).locator("th[data-column=nodes_before] button").click()
    numbers = [int(text.replace(",", "")) for text in column(page, 2)]
    assert numbers[1:] == sorted(numbers[1:], reverse=True)
    assert len(numbers) > 2


def test_the_numbers_of_the_model_are_those_of_the_record(page: Page, folder_of: Callable[[str], Path]) -> None:
    name = Path(page.url).parent.name
    run = run_of(folder_of(name))
    cells = rows(page).first.locator("td").all_inner_texts()
    assert f"{run.before.nodes:,}" in cells
    assert f"{run.after.nodes:,}" in cells


def test_a_click_opens_a_module_and_going_back_closes_it(page: Page) -> None:
    name = rows(page).nth(1).locator("a")
    name.click()
    detail = tree(page).locator(".modules-detail")
    expect(detail).to_be_visible()
    assert "#module=" in page.url
    path = detail.locator("h3 .path").inner_text()
    assert path in page.url.replace("%2E", ".")
    expect(detail.locator("svg").first).to_be_visible()
    page.go_back()
    expect(detail).to_be_hidden()
    page.go_forward()
    expect(detail).to_be_visible()


def test_a_link_in_the_address_opens_its_module(opened: Open) -> None:
    page = opened("deep", f"#module={DEEP_MODULE}")
    detail = tree(page).locator(".modules-detail")
    expect(detail).to_be_in_viewport()
    assert detail.locator("h3 .path").inner_text() == DEEP_MODULE
    expect(detail.locator("svg").first).to_be_visible()
    expect(detail.get_by_text("rewrites").first).to_be_visible()


def test_a_link_to_a_missing_module_gives_a_message(opened: Open) -> None:
    page = opened("transformer", "#module=no.such.module")
    expect(page.locator(".modules-status")).to_contain_text("no module called")


def test_a_module_is_searched_opened_and_closed_by_keyboard(page: Page) -> None:
    tree(page)
    page.keyboard.press("/")
    expect(tool(page, "search")).to_be_focused()
    page.keyboard.type("attention")
    page.keyboard.press("Enter")
    focused = page.locator("tr[data-line]:focus")
    expect(focused).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator(".modules-detail")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".modules-detail")).to_be_hidden()
    page.keyboard.press("Home")
    expect(page.locator("tr[data-line='0']:focus")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(focused).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.locator("tr[data-line='1']:focus")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog.keys")).to_be_hidden()


def test_equal_layers_are_one_row_that_can_be_split(opened: Open) -> None:
    page = opened("deep")
    tool(page, "collapse").click()
    together = rows(page).count()
    tool(page, "part").check()
    tool(page, "expand").click()
    assert rows(page).count() > together
    rows(page).last.scroll_into_view_if_needed()
    expect(rows(page).nth(160)).to_be_attached()
