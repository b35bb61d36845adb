"""Every command in the README and in the pages of docs/ gives the output shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import readme

LARGEST = 9_000  # bytes of the README: one page that is read to its end


def assert_shown(page: Path, played: str) -> None:
    text = page.read_text()
    assert readme.commands(text), f"no command is shown on {page.name}"
    assert "unexpected failure" not in played
    assert played.count("error: ") == text.count("error: ")
    assert readme.steady(played) == readme.steady(text), f"`python tests/readme.py {page.name}` refreshes the page"


@pytest.mark.campaign  # more than a minute; `make docs` runs it
def test_the_tour_shows_the_real_output(tmp_path: Path) -> None:
    assert_shown(readme.TOUR, readme.refreshed(readme.TOUR.read_text(), tmp_path))


@pytest.mark.campaign
def test_the_readme_and_the_pages_show_the_real_output(tmp_path: Path) -> None:
    """In one test: the pages begin with the files that the README's commands write."""
    begun = tmp_path / "begun"
    begun.mkdir()
    assert_shown(readme.PAGE, readme.prepare(begun))
    for page in readme.DOCS:
        assert_shown(page, readme.refreshed(page.read_text(), readme.copied(begun, tmp_path / page.stem)))


@pytest.mark.slow
def test_the_python_code_of_the_readme_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", readme.PAGE.read_text(), re.DOTALL)
    assert len(code) == 1
    done = subprocess.run(
        [sys.executable, "-c", code[0]], cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ \d+ True\n", done.stdout)
    assert (tmp_path / "report.html").is_file()


def test_every_shown_output_is_refreshed() -> None:
    """A console block on a page that is not played would become wrong unnoticed."""
    shown = {
        page for page in readme.ROOT.rglob("*.md") if "\n```console" in page.read_text() and ".venv" not in str(page)
    }
    assert shown == {readme.PAGE, readme.TOUR, readme.SKILL, *readme.DOCS}


def test_the_readme_is_short() -> None:
    assert readme.PAGE.stat().st_size < LARGEST


def test_llms_txt_is_the_page_for_agents() -> None:
    text = readme.LLMS.read_text()
    assert text == readme.for_llms(readme.AGENTS.read_text()), "`python tests/readme.py docs/for-agents.md` writes it"
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (readme.ROOT / link).exists()] == []


def test_the_skill_is_the_page_for_agents() -> None:
    text = readme.SKILL.read_text()
    assert text == readme.for_skill(readme.AGENTS.read_text()), "`python tests/readme.py docs/for-agents.md` writes it"
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["name"] == readme.SKILL.parent.name  # as agents require
    assert len(head["description"]) < 1024
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (readme.SKILL.parent / link).exists()] == []


def test_measured_blocks_are_not_compared() -> None:
    text = "```console measured\n$ sardonyx bench a b\n{}\n```\n215 nodes\n"
    assert readme.steady(text.format("no difference")) == readme.steady(text.format("12 % faster"))
    assert readme.steady(text) != readme.steady(text.replace("bench", "profile"))
    assert readme.steady(text) != readme.steady(text.replace("215", "216"))


def test_only_times_and_last_digits_may_differ() -> None:
    assert readme.steady("in 780 ms, worst 2.1e-07") == readme.steady("in 1.1 s, worst 9.9e-08")
    assert readme.steady("y float32 2e-07 3e-05 342 7e-06") == readme.steady("y float32 1e-07 5e-04 7.49e+03 7e-06")
    assert readme.steady("178 → 108 nodes") != readme.steady("178 → 109 nodes")
    assert readme.steady("verified on 5 trials") != readme.steady("verified on 4 trials")
