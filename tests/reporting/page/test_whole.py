"""The whole page: a single file with sections in order, and every name shown as text."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import ModuleCount, Run
from sardonyx.reporting.page import EARLY, SCRIPTS, STYLES, harmless, render_page
from sardonyx.reporting.run_bundle import RunBundle

ORDER = ["verdict", "graph", "modules", "map", "rewrites", "missed", "attention", "verification", "measured"]
RUN = sample_run()
NAMESPACE = "http://www.w3.org/2000/svg"
FORBIDDEN = (
    r"\binnerHTML\b", r"\bouterHTML\b", r"\binsertAdjacentHTML\b", r"\bdocument\.write", r"\beval\(", r"\bFunction\(",
    r"createContextualFragment", r"\bDOMParser\b", r"\bsrcdoc\b", r"\bfetch\(", r"XMLHttpRequest", r"\bimport\(",
    r"setAttribute\(\s*[\"'`]on", r"\.on[a-z]+\s*=[^=]",
)  # fmt: skip


class Elements(HTMLParser):
    """Parses HTML: every tag with the names of its attributes, those in plots separately."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.in_plots: set[tuple[str, tuple[str, ...]]] = set()
        self.in_picture = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        seen = (tag, tuple(name for name, _value in attrs))
        self.in_picture = self.in_picture or tag == "svg"
        if self.in_picture:
            self.in_plots.add(seen)
        else:
            self.tags.append(seen)

    def handle_endtag(self, tag: str) -> None:
        self.in_picture = self.in_picture and tag != "svg"

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", ()))


def _elements(html: str) -> Elements:
    reader = Elements()
    reader.feed(html)
    reader.close()
    return reader


def _page(*runs: Run) -> str:
    return render_page([RunBundle(f"model {place}", run) for place, run in enumerate(runs or (sample_run(),))])


def _assets(*endings: str) -> Iterator[tuple[str, str]]:
    for file in sorted((resources.files("sardonyx.reporting.page") / "assets").iterdir(), key=lambda each: each.name):
        if file.name.endswith(endings):
            yield file.name, file.read_text("utf-8")


def test_sections_come_in_the_order_of_the_page() -> None:
    sections = re.findall(r'<section data-section="(\w+)"', _page())
    assert sections == ORDER


def test_the_navigation_links_to_every_section_without_a_script() -> None:
    html = _page(sample_run(), sample_run())
    anchors = set(re.findall(r'<section[^>]* id="([^"]+)"', html))
    rows = "".join(re.findall(r"<nav.*?</nav>", html, re.DOTALL))
    links = re.findall(r'<a href="#(section=[^"]+)"', rows)
    assert len(links) >= 2 * len(ORDER)
    assert set(links) <= anchors


def test_only_the_scripts_of_the_page_may_run() -> None:
    html = _page()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = re.findall(r"'sha256-([^']+)'", policy[1])
    assert "default-src 'none'" in policy[1]
    assert len(hashes) == 2
    assert allowed == hashes
    assert "unsafe-inline" not in policy[1].partition("script-src")[2]


def test_every_asset_is_used_and_none_is_missing() -> None:
    assert {name for name, _text in _assets(".js")} == {*SCRIPTS, EARLY}
    assert {name for name, _text in _assets(".css")} == set(STYLES)


def test_no_script_makes_markup_of_text() -> None:
    for name, text in _assets(".js"):
        for pattern in FORBIDDEN:
            assert re.search(pattern, text) is None, f"{name} has {pattern}"


def test_the_page_loads_nothing() -> None:
    texts = [*_assets(".js", ".css"), ("page", _page())]
    for name, text in texts:
        plain = re.sub(r"(?m)^\s*(//|/\*).*$|\s//\s.*$", "", text.replace(NAMESPACE, ""))
        matches = re.search(r"https?:|[\"'(]//|url\(|@import|<link|<img|<iframe|\ssrc=", plain)
        assert matches is None, f"{name}: {plain[max(matches.start() - 40, 0) : matches.end() + 40]}"


def test_no_element_has_an_event_attribute() -> None:
    seen = _elements(_page())
    assert not [names for _tag, names in (*seen.tags, *seen.in_plots) if any(name.startswith("on") for name in names)]


def test_a_selector_is_shown_for_two_models_only() -> None:
    assert 'id="picker"' not in _page()
    both = _page(sample_run(), sample_run())
    assert re.findall(r'<option value="(\d)">(model \d)</option>', both) == [("0", "model 0"), ("1", "model 1")]
    assert len(re.findall(r'<article class="model"', both)) == 2


@given(st.dictionaries(st.text(), st.lists(st.text() | st.sampled_from(["</script>", "<!--", "\u2028", "&lt;"]))))
def test_the_data_block_reads_back_and_has_no_markup(data: object) -> None:
    text = harmless(data)
    assert json.loads(text) == data
    assert not set(text) & set("<>&\u2028\u2029")


HOSTILE = st.text(
    st.sampled_from("<>&\"'/=`{}%!-ax \n\x00\u202e\u2028\x1b]") | st.characters(codec="utf-8"), min_size=1, max_size=12
)
# Without dots and slashes, which separate paths and tags: they would give other modules, not only other names.
PARTS = st.lists(HOSTILE.map(lambda name: re.sub("[./]", "", name)).filter(bool), min_size=4, max_size=4, unique=True)


def _named(name: str, label: str, first: str, second: str) -> str:
    """A page with these names as names of models, files and modules."""
    run = RUN
    modules = (ModuleCount("", f"/{name}", 3, 2), ModuleCount(first, f"/{name}/{second}", 5, 1, 7, 8, 9))
    passes = tuple(replace(each, modules={first: each.rewrites}) for each in run.passes)
    source = replace(run.source, path=f"{name}.onnx")
    events = tuple(replace(each, owner=first, origins=(first,)) for each in run.events[:3])
    changed = replace(run, modules=modules, passes=passes, source=source, notes=(name,), events=events, attention=())
    return render_page([RunBundle(label, replace(changed, wiring_before=None, wiring_after=None))])


@functools.cache
def _plain() -> Elements:
    return _elements(_named("plain", "label", "one", "Two"))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(PARTS)
def test_names_never_become_elements(names: list[str]) -> None:
    """In a plot a long name may not fit, so there only the kinds of elements are compared."""
    plain, seen = _plain(), _elements(_named(*names))
    assert seen.tags == plain.tags
    assert seen.in_plots <= plain.in_plots
