"""The text of a tuning: deterministic, with the outcome of every unit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from reporting.sample_tuning import sample_tuning, tuned_run
from reporting.written import in_terminal
from sardonyx.records.run import Tuning
from sardonyx.reporting.bench import tuning_clause, tuning_section
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.run import run_document, run_sentence
from sardonyx.reporting.writers import terminal

GOLDEN = Path(__file__).parent / "golden" / "tuning.txt"


def shown_text(tuning: Tuning, view: View) -> str:
    return terminal.write(Document((tuning_section(tuning, view),)))


def test_reads_as_the_golden_file_does() -> None:
    text = shown_text(sample_tuning(), View(verbose=True))
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_every_unit_is_named_once_without_the_list_of_questions() -> None:
    text = shown_text(sample_tuning(), View())
    for decision in sample_tuning().decisions:
        assert text.count(decision.unit) == 1


def test_a_run_shows_its_tuning_and_its_family() -> None:
    text = in_terminal(run_document, tuned_run(), View(verbose=True))
    assert "architecture (guess): encoder (12 attentions, none causal)" in text
    assert "On this machine" in text
    assert "On this machine" not in in_terminal(run_document, replace(tuned_run(), tuning=None))
    assert "22.0 % faster here [20.0, 23.5]" in run_sentence(tuned_run())


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        (replace(sample_tuning(), chosen="source"), "left as it was"),
        (replace(sample_tuning(), chosen="untuned"), "15.0 % faster here"),
    ],
)
def test_the_summary_line_names_the_choice(tuning: Tuning, message: str) -> None:
    assert message in (tuning_clause(tuning) or "")


def test_names_are_escaped_in_the_terminal() -> None:
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
    text = shown_text(hostile, View(verbose=True))
    assert all(char.isprintable() or char == "\n" for char in text)
