"""The text of a tuning: reads the same every time, and says of every unit what became of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from reporting.sample_tuning import sample_tuning, tuned_run
from sardonyx.records.tuning import Tuning
from sardonyx.reporting.options import View
from sardonyx.reporting.run import closing_sentence, render_run
from sardonyx.reporting.tuning import tuning_clause, tuning_lines

GOLDEN = Path(__file__).parent / "golden" / "tuning.txt"


def test_reads_as_the_golden_file_does() -> None:
    shown = "\n".join(tuning_lines(sample_tuning(), View(verbose=True))) + "\n"
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(shown, encoding="utf-8")
    assert shown == GOLDEN.read_text(encoding="utf-8")


def test_every_unit_is_named_once_without_the_list_of_questions() -> None:
    shown = "\n".join(tuning_lines(sample_tuning(), View()))
    for decision in sample_tuning().decisions:
        assert shown.count(decision.unit) == 1


def test_a_run_shows_its_tuning_and_its_family() -> None:
    shown = render_run(tuned_run())
    assert "looks like: encoder (12 attentions, none causal)" in shown
    assert "On this machine" in shown
    assert "On this machine" not in render_run(replace(tuned_run(), tuning=None))
    assert "22.0 % faster here [20.0, 23.5]" in closing_sentence(tuned_run())


@pytest.mark.parametrize(
    ("tuning", "said"),
    [
        (replace(sample_tuning(), chosen="source"), "left as it was"),
        (replace(sample_tuning(), chosen="untuned"), "15.0 % faster here"),
    ],
)
def test_the_sentence_is_about_what_was_chosen(tuning: Tuning, said: str) -> None:
    assert said in (tuning_clause(tuning) or "")


def test_no_name_touches_the_terminal() -> None:
    evil = "x\x1b[31m\n"
    tuning = sample_tuning()
    first = replace(tuning.decisions[0], unit=evil)
    hostile = replace(
        tuning,
        decisions=(first, replace(first, choice="kept"), replace(first, choice="not examined")),
        questions=tuple(replace(each, units=(evil,)) for each in tuning.questions),
        sizes={evil: 3},
        why=evil,
        notes=(evil,),
    )
    shown = tuning_lines(hostile, View(verbose=True))
    assert not any("\x1b" in line or "\n" in line for line in shown)
