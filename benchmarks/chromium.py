"""The machine's own browser, driven by playwright, as the tests and the campaign that open pages use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.runtime.browser import FLAGS, path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright


def launch(driver: Playwright) -> Browser:
    """One that is started, with a profile of its own."""
    return driver.chromium.launch(executable_path=path(), args=list(FLAGS))
