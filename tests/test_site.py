"""The documentation builds as a site without warnings, and its reference covers exactly the public names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import sardonyx

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
    page = (site / "reference.html").read_text()
    names = re.findall(r'<h3 id="sardonyx\.(\w+)"', page)
    assert sorted([*names, "__version__"]) == sorted(sardonyx.__all__)


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
