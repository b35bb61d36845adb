"""The text report matches the Run, is deterministic, and escapes every name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from reporting.sample_run import failed_verdict, sample_run, sample_verdict
from reporting.written import in_terminal
from sardonyx.records.run import Accuracy, ModuleCount, OpCount, PassRecord, RefusalGroup, RolledBack, Run
from sardonyx.reporting.document import View
from sardonyx.reporting.run import run_document, run_sentence
from sardonyx.reporting.verdict import verdict_document

GOLDEN = Path(__file__).parent / "golden"


def _dry(run: Run) -> Run:
    return replace(run, options=run.options | {"dry_run": True}, result=replace(run.result, path=None), rolled_back=())


def _failed(run: Run) -> Run:
    return replace(run, status="verification-failed", verdict=failed_verdict(), result=replace(run.result, path=None))


CASES = {
    "run.txt": lambda: in_terminal(run_document, sample_run()),
    "run_verbose.txt": lambda: in_terminal(run_document, sample_run(), View(verbose=True)),
    "run_dry.txt": lambda: in_terminal(run_document, _dry(sample_run())),
    "run_failed.txt": lambda: in_terminal(run_document, _failed(sample_run())),
    "verdict.txt": lambda: in_terminal(verdict_document, sample_verdict(), "a.onnx", "b.onnx", View(verbose=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_reads_as_the_golden_file_does(name: str) -> None:
    # Run with REWRITE_GOLDEN=1 after an intended change, and read the difference before committing it.
    text = CASES[name]()
    if os.environ.get("REWRITE_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_plain_output_has_no_escapes_and_no_trailing_space() -> None:
    text = in_terminal(run_document, sample_run(), View(verbose=True))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.split("\n"))


def test_colour_changes_nothing_but_colour() -> None:
    import re

    coloured = in_terminal(run_document, sample_run(), color=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == in_terminal(run_document, sample_run())


def test_the_summary_line_reports_the_result() -> None:
    run = replace(sample_run(), rolled_back=())
    assert run_sentence(run) == (
        "324 → 187 nodes (−42 %), 17.4 → 17.4 MB, same outputs on 12 trials (12 % of the tolerance used) → small.onnx"
    )
    exact = replace(sample_verdict(), outputs=sample_verdict().outputs[1:])
    assert "(bit for bit)" in run_sentence(replace(run, verdict=exact))
    assert "not verified → small.onnx" in run_sentence(replace(run, verdict=None))
    assert run_sentence(replace(run, after=run.before)).startswith("324 nodes as before, ")


def test_a_failed_run_is_never_called_verified() -> None:
    text = in_terminal(run_document, _failed(sample_run()))
    assert not re.search(r"\bverified\b", text)
    assert text.endswith("verification failed: pooler_output differs by 0.5 with seed 3; nothing was written\n")


def test_a_layer_that_differs_is_not_folded_away() -> None:
    run = sample_run()
    odd = tuple(replace(m, after=m.after - 1) if ".layer.5.output" in m.path else m for m in run.modules)
    text = in_terminal(run_document, replace(run, modules=odd), View(verbose=True))
    assert "0…4 ×5" in text
    assert "6…11 ×6" in text
    assert "×12" not in text


def test_missed_fusions_are_shown_in_verbose_and_dry_runs_only() -> None:
    reason = "would grow the model past the byte budget"
    assert reason not in in_terminal(run_document, sample_run())
    assert reason in in_terminal(run_document, sample_run(), View(verbose=True))
    assert reason in in_terminal(run_document, _dry(sample_run()))


HOSTILE = "[red]x[/] \x1b[31m\x1b]0;title\x07 \u202egnp\u202c \r\n\ttab \ud800 [/bold]"


def test_hostile_names_print_literally_and_move_no_cursor() -> None:
    run = sample_run()
    record = PassRecord(HOSTILE, HOSTILE, Accuracy.EXACT, 1, -1, 0, 0, 0, 0.0, {HOSTILE: 1}, ())
    refused = replace(record, rewrites=0, refusals=(RefusalGroup(HOSTILE, 1, (HOSTILE,)),))
    hostile = replace(
        run,
        ops=(OpCount(HOSTILE, 2, 1),),
        modules=(ModuleCount(HOSTILE, HOSTILE, 2, 1),),
        passes=(record, refused),
        rolled_back=(RolledBack(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        source=replace(run.source, path=HOSTILE),
        result=replace(run.result, path=HOSTILE),
        verdict=replace(
            sample_verdict(),
            reference=HOSTILE,
            failures=(HOSTILE,),
            notes=(HOSTILE,),
            outputs=(replace(sample_verdict().outputs[0], name=HOSTILE),),
            trials=(replace(sample_verdict().trials[0], dims={HOSTILE: 3}, style=HOSTILE),),
        ),
    )
    for view in (View(), View(verbose=True)):
        text = in_terminal(run_document, hostile, view)
        assert "[red]x[/]" in text
        assert r"\x1b[31m" in text
        assert all(char.isprintable() or char == "\n" for char in text)
        text.encode("utf-8")
        assert len(text.splitlines()) == text.count("\n")


def test_attention_is_shown_in_verbose_output_with_names_escaped() -> None:
    run = sample_run()
    assert "\nAttention\n" not in in_terminal(run_document, run)
    evil = "\x1b[31mevil\n\u202e"
    site = replace(run.attention[0], module=evil, mask=evil, why=evil)
    text = in_terminal(run_document, replace(run, attention=(site,)), View(verbose=True))
    assert "\nAttention\n" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31mevil" in text
