"""The documentation builds as a site without warnings, and its reference covers exactly the public names."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

import sardonyx

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent


def test_the_reference_lists_the_public_names() -> None:
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(sardonyx.__all__)


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


def test_lists_follow_an_empty_line() -> None:
    """GitHub does not need the empty line; Python-Markdown treats a list without it as text."""
    wrong: list[str] = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        matches = re.findall(r"^(?![-#`|>]|\d+\. )\S.*\n(?:- |\d+\. ).*", text, re.MULTILINE)
        wrong += [f"{page.relative_to(ROOT)}: {lines}" for lines in matches]
    assert wrong == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    pytest.importorskip("mkdocs", reason="`make setup` installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_built_reference_has_every_public_name(site: Path) -> None:
    pages = {page.stem: page.read_text() for page in (site / "api").glob("*.html")}
    assert len(pages) > 4, "a page for each topic"
    names = [name for text in pages.values() for name in re.findall(r'<h3 id="sardonyx\.(\w+)"', text)]
    assert sorted([*names, "__version__"]) == sorted(sardonyx.__all__)
    linked = re.findall(r'href="api/(\w+)\.html#sardonyx\.(\w+)"', (site / "reference.html").read_text())
    assert sorted(name for _, name in linked) == sorted(names)
    assert all(f'id="sardonyx.{name}"' in pages[topic] for topic, name in linked)


@pytest.mark.slow
def test_a_list_after_a_block_of_code_is_a_list(site: Path) -> None:
    """GitHub needs no empty line between them, and Python-Markdown does."""
    assert re.search(r"<li>\s*(<p>)?<strong>A second name</strong>", (site / "optimize.html").read_text())
    text = {page.name: page.read_text() for page in site.glob("*.html")}
    assert {name for name, page in text.items() if re.search(r"<p>- \S", page)} == set()


@pytest.mark.slow
def test_a_search_finds_pages_and_not_decisions(site: Path) -> None:
    places = [entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]]
    assert any(place.startswith("a-llama-fast-on-a-cpu.html") for place in places)
    assert not any(place.startswith(("decisions/", "project/CHANGELOG")) for place in places)


@pytest.fixture
def page(site: Path, browser: Browser) -> Iterator[Page]:
    """The home page of the site in a browser."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    yield page
    page.close()


@pytest.mark.slow
def test_the_search_box_is_in_sight_on_every_page(site: Path, page: Page) -> None:
    for name in ("index.html", "optimize.html", "writing-a-verb.html", "api/records.html"):
        page.goto((site / name).as_uri())
        page.wait_for_load_state("load")
        box = page.locator("#rtd-search-form input[name=q]").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 300, name


@pytest.mark.slow
def test_the_site_is_dark_where_the_system_is(page: Page) -> None:
    image = pytest.importorskip("PIL.Image")
    shades: dict[str, int] = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        edge_of_the_text = page.screenshot(clip={"x": 310, "y": 400, "width": 1, "height": 1})
        picture = image.open(io.BytesIO(edge_of_the_text))
        shades[scheme] = max(picture.convert("RGB").tobytes())
    assert shades["light"] > 240
    assert shades["dark"] < 50


@pytest.mark.slow
def test_links_resolve_and_nothing_is_loaded_from_other_sites(site: Path) -> None:
    broken: list[str] = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links are absolute
            continue
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="([^"]+)"', text)
        assert [url for url in loaded if "//" in url] == [], page
        for url in {*loaded, *re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)}:
            path = unquote(url.partition("#")[0])
            if path and not re.match(r"[a-z]+:", path) and not (page.parent / path).is_file():
                broken.append(f"{page.relative_to(site)}: {url}")
    assert broken == []
