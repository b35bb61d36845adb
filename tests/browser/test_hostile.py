"""Names in a model are hostile input: on the page each is text, and none is executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page

import sardonyx
from browser.conftest import Open
from hostile import VECTORS
from sardonyx.reporting import formatting

# All text of the page with everything expanded: visible text, tooltips and accessible labels.
EVERYTHING = """() => {
  dispatchEvent(new Event("beforeprint"));
  for (let round = 0; round < 4; round++) for (const each of document.querySelectorAll("details")) each.open = true;
  return new Promise((done) => setTimeout(() => {
    const texts = [document.title, document.body.innerText];
    for (const each of document.querySelectorAll("[title], [aria-label]")) texts.push(each.title, each.ariaLabel);
    for (const each of document.querySelectorAll("svg text, svg title")) texts.push(each.textContent);
    done(texts.join("\\n"));
  }, 500));
}"""
FOLLOW = """async (links) => {
  for (const link of links) {
    location.hash = link;
    await new Promise((next) => setTimeout(next));
  }
}"""
HANDLERS = ("focus", "mouseover", "load", "error", "click")
ELEMENTS = ("script:not([type])", "img", "iframe", "object", "embed", "base", "link", "meta[http-equiv=refresh]")
STRANGE = ", ".join((*ELEMENTS, "[autofocus]", *(f"[on{each}]" for each in HANDLERS)))


def everything(page: Page) -> str:
    return re.sub(r"\s+", " ", page.evaluate(EVERYTHING))


def as_shown(vector: str) -> str:
    """The name of an output as the verification table shows it."""
    return re.sub(r"\s+", " ", formatting.name(vector, 100))


@pytest.mark.parametrize("name", ["hostile", "foreign", "records"])
def test_no_name_becomes_an_element_or_runs(opened: Open, name: str) -> None:
    page = opened(name)
    everything(page)
    results = page.evaluate(
        "all => [...document.querySelectorAll(all)].map((each) => each.outerHTML.slice(0, 8))", STRANGE
    )
    assert results == ["<script>", "<script>"], "the page's own"
    assert page.evaluate("document.querySelectorAll('a[href]:not([href^=\"#\"])').length") == 0
    assert page.evaluate("Object.prototype.toString.call({}) + [].constructor.name") == "[object Object]Array"


def test_every_name_shows_as_text(opened: Open) -> None:
    text = everything(opened("hostile"))
    assert [vector for vector in VECTORS.values() if as_shown(vector) not in text] == []


def test_every_operator_shows_as_text(opened: Open) -> None:
    text = everything(opened("foreign", "#module=net"))
    assert [vector for vector in VECTORS.values() if as_shown(vector)[:12] not in text] == []


def test_no_link_runs_code(opened: Open) -> None:
    """In the address, encoded and raw, for every key."""
    page = opened("hostile")
    encoded = [(key, quote(each, safe="")) for each in VECTORS.values() for key in ("module", "pass", "section")]
    plain = [("module", re.sub(r"[^!-~]", "", each)) for each in VECTORS.values()]
    others = [(key, quote(VECTORS["image"], safe="")) for key in ("rewrite", "model", "__proto__", "constructor")]
    page.evaluate(FOLLOW, [f"#{key}={text}" for key, text in (*encoded, *plain, *others)])
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert page.locator("img, iframe, base, link").count() == 0


def test_a_link_to_a_hostile_module_leads_there(opened: Open) -> None:
    vector = VECTORS["image"]
    page = opened("hostile", f"#module={quote(f'layers.{vector}', safe='')}")
    assert as_shown(vector) in everything(page)


def test_without_a_script_names_are_text_too(opened: Open) -> None:
    page = opened("records", java_script_enabled=False)
    assert page.locator("img, iframe, base, link").count() == 0
    assert "window.hacked" in page.inner_text("main")


def test_plot_files_run_no_code(open_page: Open, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    sardonyx.report(folder_of("records"), tmp_path / "pictures", format="svg")
    pictures = sorted((tmp_path / "pictures").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        ElementTree.parse(picture)
        page = open_page(picture)
        assert page.evaluate("document.querySelectorAll('script, foreignObject, image, a').length") == 0


def test_markdown_shows_names_as_text(open_page: Open, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    text = sardonyx.report(folder_of("records"), format="markdown").text
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    page_file = tmp_path / "page.htm"
    page_file.write_text(f"<!doctype html><meta charset=utf-8><body>{html}", "utf-8")
    page = open_page(page_file)
    assert page.evaluate("document.querySelectorAll('script, img, iframe, svg, base, [onclick]').length") == 0
    assert (
        page.evaluate("[...document.links].map((each) => each.href).filter((each) => !each.startsWith('https:'))") == []
    )
