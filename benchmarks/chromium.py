"""The machine's own browser, as the tests and the campaign that open pages use it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The sandbox needs rights that containers do not give; the others keep the browser from calling home.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def path() -> str | None:
    """Where it is; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def launch(driver: Playwright) -> Browser:
    """One that is started, with a profile of its own."""
    return driver.chromium.launch(executable_path=path(), args=list(FLAGS))
