"""A real browser, and pages that must not log errors, load anything, or run code from names of a model."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

import chromium
from browser import pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

REQUIRED = os.environ.get("SARDONYX_BROWSER") == "required"  # as in CI: a missing browser is a failure
collect_ignore_glob: list[str] = []
if importlib.util.find_spec("playwright") is None and not REQUIRED:
    warnings.warn("no playwright, so no page is opened; make setup installs it", stacklevel=1)
    collect_ignore_glob.append("test_*.py")

BAD = ("error", "warning")  # console messages that a page must not produce
LAST_WORDS = "() => { localStorage.clear(); return window.hacked ?? null; }"  # the next page finds nothing stored
Open = Callable[..., "Page"]


@pytest.fixture
def node_modules(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with onnxruntime-web, which commands then use."""
    folder = Path(sys.prefix) / "web" / "node_modules"
    if chromium.path() is None or not (folder / "onnxruntime-web").is_dir():
        pytest.skip("no browser, or no onnxruntime-web to run in it; make browser installs both")
    monkeypatch.setenv("SARDONYX_NODE_MODULES", str(folder))
    return folder


@pytest.fixture(scope="session")
def context_of(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., BrowserContext]:
    """`context_of(color_scheme="dark")`: one context for all tests with these options.

    A page stays open in it, so that its process stays too: a page in a new process takes twice the time.
    """
    blank = tmp_path_factory.mktemp("blank") / "blank.html"
    blank.write_text("<p>blank")

    @functools.cache
    def context(**options: Any) -> BrowserContext:
        made = browser.new_context(**options)
        made.new_page().goto(blank.as_uri())
        return made

    return context


@pytest.fixture
def open_page(context_of: Callable[..., BrowserContext]) -> Iterator[Open]:
    """`open_page(file, "#module=…", width=400, …)`: the page, ready. Any error on it fails the test."""
    complaints: list[str] = []
    opened: list[Page] = []

    def complain(wrong: bool, text: str) -> None:
        if wrong:
            complaints.append(text)

    def dismiss(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def opener(file: Path, link: str = "", *, width: int = 1280, height: int = 900, **options: Any) -> Page:
        page = context_of(**options).new_page()
        page.set_viewport_size({"width": width, "height": height})
        opened.append(page)
        address = file.resolve().as_uri()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complain(message.type in BAD, f"console: {message.text}"))
        page.on("pageerror", lambda error: complain(True, f"error: {error}"))
        page.on("dialog", dismiss)
        page.on("request", lambda asked: complain(asked.url.split("#")[0] != address, f"request: {asked.url}"))
        page.goto(address + link, wait_until="load")
        if options.get("java_script_enabled", True) and file.suffix == ".html":
            page.wait_for_selector(":root[data-ready]", state="attached")
        return page

    yield opener
    hacked = [page.evaluate(LAST_WORDS) for page in opened if not page.is_closed()]
    for page in opened:
        page.close()
    assert [*complaints, *(f"ran: {each}" for each in hacked if each is not None)] == []


@pytest.fixture(scope="session")
def folder_of(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, small_model: pages.SmallModel
) -> Callable[[str], Path]:
    """`folder_of("deep")` has that model's report.html and records; written once for all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "pages"
    shared.mkdir(exist_ok=True)

    def made(name: str) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = shared / f"{name}.part"
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                pages.MAKERS[name](unfinished, small_model)
                unfinished.rename(folder)
        return folder

    return made


@pytest.fixture
def opened(open_page: Open, folder_of: Callable[[str], Path]) -> Open:
    """`opened("deep", "#module=…")`: that model's page, ready."""
    return lambda name, link="", **options: open_page(folder_of(name) / "report.html", link, **options)
