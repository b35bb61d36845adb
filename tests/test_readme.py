"""The README's tour is true: every command shown gives the output shown."""

from __future__ import annotations

from pathlib import Path

import readme


def test_the_tour_is_what_the_commands_say(tmp_path: Path) -> None:
    page = readme.PAGE.read_text()
    assert readme.commands(page), "no command is shown"
    played = readme.refreshed(page, tmp_path)
    assert "error: unexpected" not in played
    assert readme.steady(played) == readme.steady(page), "`python tests/readme.py` refreshes the page"


def test_only_times_and_last_digits_may_differ() -> None:
    assert readme.steady("in 780 ms, worst 2.1e-07") == readme.steady("in 1.1 s, worst 9.9e-08")
    assert readme.steady("178 → 108 nodes") != readme.steady("178 → 109 nodes")
    assert readme.steady("proven equal on 5 trials") != readme.steady("proven equal on 4 trials")
