"""The page's script formats numbers and names as Python does."""

from __future__ import annotations

import random
import unicodedata
from importlib import resources
from typing import TYPE_CHECKING, Any

from hostile import VECTORS
from sardonyx.reporting import formatting
from sardonyx.reporting.profile import ms

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CORE = (resources.files("sardonyx.reporting.page") / "assets" / "core.js").read_text("utf-8")
RANDOM_CASES = 2000


def _evaluate(browser: Browser, expression: str, inputs: list[Any]) -> list[str]:
    """The result of the script for each input."""
    page = browser.new_page()
    try:
        return page.evaluate(f"(inputs) => {{ {CORE}\n return inputs.map({expression}); }}", inputs)
    finally:
        page.close()


def _counts() -> list[int]:
    """Integers of every length, and those where a unit or a digit changes."""
    generator = random.Random(0)
    edges = [sign * (10**power + near) for power in range(13) for near in (-1, 0, 1) for sign in (1, -1)]
    halves = [25, 75, 125, 999_500, 999_499, 99_950, 99_949, 1_250, 1_350, 999_950_000, 2_500_000]
    return [
        *edges,
        *halves,
        *(int(10 ** generator.uniform(0, 14)) * generator.choice((1, -1)) for _ in range(RANDOM_CASES)),
    ]


def _times() -> list[float]:
    """Times of every size, including exact halves of a digit, which are rounded to even."""
    generator = random.Random(1)
    ties = [place / 2**power for power in range(1, 5) for place in range(1, 200, 2)]
    edges = [0.0, 0.0005, 0.00049, 0.9995, 0.99949, 9.995, 9.99499, 99.95, 99.9499, 1234.5, 1235.5]
    return [*ties, *edges, *(10 ** generator.uniform(-5, 6) for _ in range(RANDOM_CASES))]


def test_counts_and_sizes_match_python(browser: Browser) -> None:
    numbers = _counts()
    for name, written in (
        ("count", formatting.count),
        ("size", formatting.size),
        ("amount", formatting.amount),
        ("change", formatting.change),
        ("plural", lambda number: formatting.plural(number, "node")),
    ):
        results = _evaluate(browser, f'(each) => fmt.{name}(each, "node")', numbers)
        assert results == [written(number) for number in numbers], name


def test_changes_in_percent_match_python(browser: Browser) -> None:
    generator = random.Random(2)
    pairs = [[0, 5], [5, 5], [1000, 1005], [200, 201], [8, 9], [1000, 995], [40, 41], [40, 39], [400, 399]]
    pairs += [[generator.randrange(1, 5000), generator.randrange(0, 5000)] for _ in range(RANDOM_CASES)]
    results = _evaluate(browser, "([before, after]) => fmt.percent(before, after)", pairs)
    assert results == [formatting.percent(before, after) for before, after in pairs]


def test_times_match_python(browser: Browser) -> None:
    times = _times()
    assert _evaluate(browser, "(each) => fmt.ms(each)", times) == [ms(each) for each in times]


def test_invisible_characters_are_escaped_as_in_python(browser: Browser) -> None:
    kept = {chr(code) for code in (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)}  # spaces of any width
    chars = [chr(code) for code in range(0x2100) if chr(code) not in kept and not _unassigned(chr(code))]
    names = [
        *chars,
        *(vector for vector in VECTORS.values() if not any(map(_unassigned, vector)) and not set(vector) & kept),
    ]
    assert _evaluate(browser, "(each) => visible(each)", names) == [formatting.visible(name) for name in names]


def _unassigned(char: str) -> bool:
    """Two Unicode versions may disagree on what is a character at all."""
    return unicodedata.category(char) in {"Cn", "Cs"}


def test_a_link_never_leaves_the_page_and_text_is_never_markup(browser: Browser) -> None:
    expression = (
        '(each) => { const made = h("a", {href: each, title: each, onclick: each, ONCLICK: each}, each);'
        " const names = made.getAttributeNames().join();"
        " return JSON.stringify([made.childElementCount, names, made.getAttribute('href')]); }"
    )
    hrefs = ["javascript:alert(1)", "https://example.org", "//example.org", "data:text/html,x", " #x", "<b>x</b>"]
    assert _evaluate(browser, expression, hrefs) == ['[0,"title",null]'] * len(hrefs)
    assert _evaluate(browser, expression, ["#module=a"]) == ['[0,"href,title","#module=a"]']
