"""How large pages are, how soon they open and how smoothly they move, in the machine's own browser.

    python benchmarks/pages.py RUN ... [--times 5] [--screenshots FOLDER]

A RUN is a run.json or a folder that `sardonyx optimize --run` left. The page of each is written, opened so many times
by a browser that was just started, scrolled from top to bottom, opened up whole, and clicked through. Every number is a
median; that of scrolling and of expanding is the longest pause between two frames, that of walking the longest time to
open one module of the graph and draw it. About 20 seconds a page. Fails where a page is too large, too slow, complains,
or asks for anything. `--screenshots` leaves pictures for a person to look at.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import chromium
import sardonyx

LARGEST, SLOWEST = 6_000_000, 2.0  # bytes; seconds until everything that is seen first is there
LONGEST_WALK = 1000.0  # milliseconds to open a module of the graph
WALK = """async () => {
  document.querySelector("[data-section=graph]")?.scrollIntoView();
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const nodes = (box) => parseInt(/([\\d,]+) node/.exec(box.ariaLabel)[1].replaceAll(",", ""));
  let longest = 0;
  for (let depth = 0; depth < 7; depth++) {
    await frame();
    const closed = [...document.querySelectorAll("[data-side=before] .nested-box[aria-expanded=false]")];
    if (!closed.length) break;
    const largest = closed.reduce((one, other) => (nodes(other) > nodes(one) ? other : one));
    const start = performance.now();
    largest.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    await frame();
    longest = Math.max(longest, performance.now() - start);
  }
  return longest;
}"""
WATCH = """() => {
  const seen = () => document.documentElement?.dataset.ready && (window.readyAt ??= performance.now());
  new MutationObserver(seen).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });
}"""
TIMES = """() => {
  const [opened] = performance.getEntriesByType("navigation");
  const [painted] = performance.getEntriesByName("first-contentful-paint");
  return { load: opened.loadEventEnd, ready: window.readyAt, painted: painted?.startTime ?? window.readyAt };
}"""
SCROLL = """(act) => new Promise((done) => {
  let last = performance.now(), longest = 0, idle = 0;
  const step = () => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    const before = scrollY;
    if (act === "scroll") scrollBy({ top: 300, behavior: "instant" });
    idle = scrollY === before ? idle + 1 : 0;
    if (idle < 20) requestAnimationFrame(step);
    else done(longest);
  };
  if (act !== "scroll") document.querySelector(act)?.click();
  requestAnimationFrame(step);
})"""


@dataclass
class Measured:
    """One page."""

    name: str
    bytes: int
    load: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    painted: list[float] = field(default_factory=list)
    scrolling: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    walking: list[float] = field(default_factory=list)
    actions: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Until the page is loaded, painted and answers."""
        return max(statistics.median(each) for each in (self.load, self.ready, self.painted)) / 1000

    @property
    def kept(self) -> bool:
        """Whether the page is what was promised."""
        is_walked = statistics.median(self.walking) < LONGEST_WALK
        return self.bytes < LARGEST and self.seconds < SLOWEST and is_walked and not self.complaints


@contextmanager
def opened(file: Path, measured: Measured, *, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
    """The page in a browser that was just started; what it complains of or asks for is kept."""
    address = file.resolve().as_uri()
    with sync_playwright() as driver:
        browser = chromium.launch(driver)
        size = {"width": width, "height": 900}
        page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # pyright: ignore[reportArgumentType]
        page.on("console", lambda said: said.type in ("error", "warning") and measured.complaints.append(said.text))
        page.on("pageerror", lambda error: measured.complaints.append(str(error)))
        page.on("request", lambda asked: asked.url != address and measured.complaints.append(asked.url))
        page.add_init_script(f"({WATCH})()")
        page.goto(address, wait_until="load")
        page.wait_for_selector(":root[data-ready]", state="attached")
        page.wait_for_timeout(200)
        yield page
        browser.close()


def measure(file: Path, measured: Measured, times: int) -> None:
    """Open, scroll and open up, each time anew."""
    for _ in range(times):
        with opened(file, measured) as page:
            found = page.evaluate(TIMES)
            for key in ("load", "ready", "painted"):
                getattr(measured, key).append(found[key])
            measured.scrolling.append(page.evaluate(SCROLL, "scroll"))
            page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
            measured.opening.append(page.evaluate(SCROLL, "[data-tool=expand]"))
            measured.walking.append(page.evaluate(WALK))


def click_through(file: Path, measured: Measured) -> None:
    """Everything that answers, once."""
    with opened(file, measured) as page:
        for act in actions(page):
            act()
            page.wait_for_timeout(30)
            measured.actions += 1


def actions(page: Page) -> Iterator[Callable[[], object]]:
    """What a reader can do, in the order of the page."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # every section starts
    field_ = page.locator("[data-tool=search]").first
    yield lambda: field_.fill("a")
    yield lambda: field_.press("Escape")
    for selector in (
        "#theme",
        "#theme",
        "#theme",
        "[data-tool=expand]",
        "[data-tool=collapse]",
        "[data-tool=part]",
        "[data-section=graph] .toolbar button:not([data-graph=full])",
        "[data-section=modules] th[data-column] button",
        "[data-section=modules] tbody tr:nth-child(-n+4) a",
        "[data-section=map] .toolbar button:not([disabled]):not([hidden])",
        "[data-section=rewrites] .toolbar button",
        "[data-section=rewrites] .rewrites-status button",
        "[data-section=rewrites] details.rewrites-pass > summary",
        "[data-section=rewrites] details.rewrites-group > summary",
        "[data-section=passes] tbody th a",
        "details.help > summary",
    ):
        for place in range(min(page.locator(selector).count(), 12)):
            one = page.locator(selector).nth(place)
            if one.is_visible():
                yield one.click


def picture(file: Path, measured: Measured, folder: Path) -> None:
    """Light, dark, narrow and printed, for a person to look at."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, scheme in (("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 400, "light")):
        with opened(file, measured, width=width, scheme=scheme) as page:
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            page.wait_for_timeout(300)
            page.screenshot(path=folder / f"{measured.name}.{name}.png", full_page=True)
    with opened(file, measured) as page:
        page.pdf(path=folder / f"{measured.name}.pdf", prefer_css_page_size=True)


def table(found: list[Measured]) -> str:
    """One line a page."""
    heads = ("MB", "load s", "ready s", "painted s", "scroll ms", "expand ms", "walk ms", "actions")
    lines = [f"{'page':<28}" + "".join(f"{head:>11}" for head in heads)]
    for each in found:
        seconds = [statistics.median(times) / 1000 for times in (each.load, each.ready, each.painted)]
        pauses = [statistics.median(times) for times in (each.scrolling, each.opening, each.walking)]
        cells = [f"{number:.2f}" for number in (each.bytes / 1e6, *seconds)] + [f"{number:.0f}" for number in pauses]
        lines.append(f"{each.name:<28}" + "".join(f"{cell:>11}" for cell in (*cells, str(each.actions))))
        lines += [f"  complains: {complaint[:110]}" for complaint in each.complaints[:5]]
    return "\n".join(lines)


def main() -> int:
    """Measure every page, say what was found, fail where it is not what was promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--screenshots", type=Path)
    asked = parser.parse_args()
    if chromium.path() is None:
        sys.exit("no browser; make browser installs one")
    found: list[Measured] = []
    for run in asked.runs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.html"
            sardonyx.report(run, file)
            measured = Measured(run.stem if run.suffix == ".json" else run.name, file.stat().st_size)
            measure(file, measured, asked.times)
            click_through(file, measured)
            if asked.screenshots is not None:
                picture(file, measured, asked.screenshots)
            found.append(measured)
    print(table(found))
    broken = [each.name for each in found if not each.kept]
    promise = (
        f"under {LARGEST / 1e6:.0f} MB, there in under {SLOWEST:.0f} s, "
        f"a module open in under {LONGEST_WALK / 1000:.0f} s, no complaint, no request"
    )
    print(f"\nnot {promise}: {', '.join(broken)}" if broken else f"\nall {len(found)} pages: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
