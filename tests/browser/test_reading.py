"""Reading the page: as a single file, on any screen, in either theme, in print, and without a script."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from browser.conftest import Open

ORDER = ["verdict", "graph", "modules", "devices", "map", "rewrites", "missed", "attention", "verification", "measured"]
LARGEST = 6_000_000  # bytes of the page of ten thousand nodes
WIDE = """[...document.querySelectorAll("main *")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => `${one.closest("section")?.dataset.section} ${one.tagName}.${one.className}`)"""
FOCUSED = """() => {
  const one = document.activeElement;
  const styles = [one, ...one.querySelectorAll(":scope > rect")].map((part) => getComputedStyle(part));
  const seen = styles.some((style) => style.outlineStyle !== "none" || parseFloat(style.strokeWidth) > 2);
  return [one.closest("section")?.dataset.section ?? "", seen, one.outerHTML.slice(0, 90)];
}"""
PATIENCE = 20.0  # seconds; generous, because test machines are shared (benchmarks/pages.py measures)


def sections(page: Page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('article.model:not([hidden]) > section')].map((one) => one.dataset.section)"
    )


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("name", ["transformer", "deep"])
def test_every_section_is_there_in_order_and_starts(opened: Open, name: str) -> None:
    page = opened(name)
    assert sections(page) == [each for each in ORDER if each != "devices" or name == "transformer"]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # starts every section
    assert page.locator("main .notice:has-text('The script of this section failed')").count() == 0


def test_ten_thousand_nodes_fit_and_open(opened: Open, folder_of: Callable[[str], Path]) -> None:
    assert (folder_of("deep") / "report.html").stat().st_size < LARGEST
    page = opened("deep")
    seconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000")
    assert 0 < seconds < PATIENCE
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000, "rows are made as they are reached"


@pytest.mark.parametrize("name", ["transformer", "deep", "two", "records"])
def test_a_narrow_screen_scrolls_one_way_only(opened: Open, name: str) -> None:
    page = opened(name, width=400)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = !each.matches('.help'); })")
    wide = page.evaluate(WIDE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400, wide[:5]


def test_the_theme_follows_the_system_until_one_is_chosen_and_then_stays(opened: Open) -> None:
    page = opened("transformer", color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert light != dark
    button = page.locator("#theme")
    button.click()
    assert (page.locator("html").get_attribute("data-theme"), background(page)) == ("light", light)
    button.click()
    assert (page.locator("html").get_attribute("data-theme"), background(page)) == ("dark", dark)
    page.emulate_media(color_scheme="light")
    stored = page.evaluate("localStorage.getItem('sardonyx-theme')")
    assert stored == "dark"
    # A browser writes its storage when it has time, and a reload may come before that.
    page.add_init_script(f"localStorage.setItem('sardonyx-theme', '{stored}')")
    page.reload()
    page.wait_for_selector(":root[data-ready]", state="attached")
    assert background(page) == dark
    button.click()
    assert page.locator("html").get_attribute("data-theme") is None
    assert background(page) == light


def test_it_prints_in_the_light_theme_without_controls(opened: Open) -> None:
    page = opened("transformer", color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator("#theme").is_hidden()
    assert page.locator("[data-section=modules] .toolbar").is_hidden()
    assert page.locator("[data-section=verification] table").first.is_visible()
    printed = page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 2


def test_without_a_script_the_results_are_readable(opened: Open) -> None:
    page = opened("transformer", java_script_enabled=False)
    assert "nodes" in page.inner_text("[data-section=verdict]")
    assert page.locator("[data-section=modules] tbody tr").count() > 3
    assert "same outputs on" in page.inner_text("[data-section=verification]")
    assert page.locator("[data-section=rewrites] tbody tr").count() > 3
    assert page.locator("[data-section=measured] svg").is_visible()
    assert page.locator("#theme").is_hidden(), "what does not answer is not shown"


def test_notes_open_by_keyboard_and_close(opened: Open) -> None:
    page = opened("transformer")
    note = page.locator("[data-section=verification] details.help").first
    note.locator("summary").focus()
    page.keyboard.press("Enter")
    assert note.locator(".help-text").is_visible()
    page.keyboard.press("Escape")
    assert not note.locator(".help-text").is_visible()


def test_another_model_can_be_selected_and_linked_to(opened: Open) -> None:
    page = opened("two")
    first, second = page.locator("article.model").nth(0), page.locator("article.model").nth(1)
    assert first.is_visible()
    assert second.is_hidden()
    page.locator("#picker").select_option("1")
    assert second.is_visible()
    assert first.is_hidden()
    assert "model=1" in page.url
    page.go_back()
    first.wait_for(state="visible")
    page = opened("two", "#section=verification&model=1")
    assert page.locator("article.model").nth(1).locator("[data-section=verification]").is_visible()
    assert page.locator("#picker").input_value() == "1"


def test_every_control_has_a_name_and_can_be_reached(opened: Open) -> None:
    page = opened("transformer")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select, a[href], summary')].filter((one) =>"
        " !(one.innerText?.trim() || one.textContent.trim() || one.ariaLabel || one.title || one.labels?.length))"
        ".map((one) => one.outerHTML.slice(0, 120))"
    )
    assert nameless == []
    clickable = page.evaluate(
        "[...document.querySelectorAll('[tabindex]')].filter((one) => one.tabIndex > 0).map((one) => one.outerHTML)"
    )
    assert clickable == [], "the order of Tab is the order of the page"


def test_tab_moves_through_the_page_with_a_visible_focus(opened: Open) -> None:
    page = opened("transformer")
    seen: set[str] = set()
    unseen: list[str] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        where, outlined, tag = page.evaluate(FOCUSED)
        seen.add(where)
        if not outlined:
            unseen.append(tag)
        if tag.startswith("<body"):
            break
    assert unseen[:-1] == []
    assert set(ORDER) - {"verdict"} <= seen


def wait_until(page: Page, expression: str) -> None:
    """Wait until an expression is true; `wait_for_function` polls with eval, which the pages do not allow."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def test_boxes_that_scroll_sideways_show_it(opened: Open) -> None:
    page = opened("transformer", width=400)
    page.wait_for_selector("nav.sections[data-more~=right]")
    page.wait_for_selector(".modules-scroll[data-more=right]")
    style = "(box) => [getComputedStyle(box, '::after').content, getComputedStyle(box).maskImage]"
    hint, mask = page.eval_on_selector(".modules-scroll", style)
    assert "scroll sideways →" in hint
    assert "gradient" in mask
    page.eval_on_selector(".modules-scroll", "(box) => { box.scrollLeft = box.scrollWidth; }")
    page.wait_for_selector(".modules-scroll[data-more=left]")
    page.emulate_media(media="print")
    assert page.eval_on_selector(".modules-scroll", style) == ["none", "none"]
    page.emulate_media(media="screen")
    fits = "(box) => box.dataset.more || box.scrollWidth - 1 <= box.clientWidth"
    marked = f"[...document.querySelectorAll('.scroll')].every({fits})"
    wait_until(page, marked)
    assert opened("transformer", width=2000).locator(".modules-scroll[data-more='']").count() == 1


def test_a_picture_of_the_whole_page_shows_every_section(opened: Open) -> None:
    page = opened("transformer", width=400)
    page.wait_for_selector("[data-section=rewrites] select", state="attached")  # nothing was scrolled near
    page.wait_for_selector("[data-section=missed] details", state="attached")
    empty = "[...document.querySelectorAll('main select')].filter((each) => !each.options.length).length"
    wait_until(page, f"{empty} === 0")
    assert page.evaluate("scrollY") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
