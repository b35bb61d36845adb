"""Every command in the README's tour and in the pages of docs/ gives the output shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import readme


@pytest.mark.slow
def test_the_tour_shows_the_real_output(tmp_path: Path) -> None:
    page = readme.PAGE.read_text()
    assert readme.commands(page), "no command is shown"
    played = readme.refreshed(page, tmp_path)
    assert "unexpected failure" not in played
    assert played.count("error: ") == page.count("error: ")
    assert readme.steady(played) == readme.steady(page), "`python tests/readme.py` refreshes the page"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    readme.prepare(folder)
    return folder


@pytest.mark.slow
def test_the_pages_show_the_real_output(begun: Path, tmp_path: Path) -> None:
    for page in readme.DOCS:
        text = page.read_text()
        assert readme.commands(text), f"no command is shown on {page.name}"
        played = readme.refreshed(text, readme.copied(begun, tmp_path / page.stem))
        assert "unexpected failure" not in played
        assert readme.steady(played) == readme.steady(text), f"`python tests/readme.py {page.name}` refreshes the page"


def test_measured_blocks_are_not_compared() -> None:
    text = "```console measured\n$ sardonyx bench a b\n{}\n```\n215 nodes\n"
    assert readme.steady(text.format("no difference")) == readme.steady(text.format("12 % faster"))
    assert readme.steady(text) != readme.steady(text.replace("bench", "profile"))
    assert readme.steady(text) != readme.steady(text.replace("215", "216"))


def test_only_times_and_last_digits_may_differ() -> None:
    assert readme.steady("in 780 ms, worst 2.1e-07") == readme.steady("in 1.1 s, worst 9.9e-08")
    checked = "{} rewrites (60 distinct) also match one by one{}"
    some, all_of_them = checked.format("79 of 127", "; 48 left out for lack of time"), checked.format("127 of 127", "")
    assert readme.steady(some) == readme.steady(all_of_them)
    assert readme.steady("178 → 108 nodes") != readme.steady("178 → 109 nodes")
    assert readme.steady("verified on 5 trials") != readme.steady("verified on 4 trials")
