"""A page that the command line made names flags; one of a call from Python names its parameters."""

from __future__ import annotations

import html
import re

from msgspec.structs import replace

from reporting.sample_bench import sample_benchmark
from reporting.sample_run import sample_run
from sardonyx.reporting.page import render_page
from sardonyx.reporting.run_bundle import RunBundle

OPTIONS = {"keep_modules": [], "runtimes": ["ort", "reference"], "hashes": True, "verify_seconds": 20.0, "only": None}


def settings(command: tuple[str, ...]) -> str:
    """The text of the last section of a page."""
    run = sample_run()
    run = replace(run, options=OPTIONS, environment=replace(run.environment, command=command))
    bundle = RunBundle("m", run, bench=sample_benchmark(files=2, notes=('`clock="cpu"` does not count it',)))
    page = render_page([bundle]).partition('<section data-section="measured"')[2].partition("</section>")[0]
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_notes_name_flags_if_the_command_line_made_the_run() -> None:
    called = settings(())
    assert 'clock="cpu"  does not count it' in called
    assert "`" not in called  # it is code on the page
    made = settings(("sardonyx", "optimize", "m.onnx"))
    assert "--clock cpu does not count it" in made
    assert "`" not in made


def test_options_are_written_in_words() -> None:
    text = settings(("sardonyx", "optimize", "m.onnx"))
    assert "runtimes ort, reference, hashes, verify seconds 20.0" in text
    assert "keep modules" not in text
    assert "['" not in text
