"""The output of `inspect --opportunities`: every remaining place with its reason."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from reporting.written import in_terminal
from sardonyx.records.inspection import Opportunities, PatternCount, WhyLeft
from sardonyx.records.run import Counts
from sardonyx.reporting.document import View
from sardonyx.reporting.inspection import opportunities_document, opportunities_sentence


def sample_opportunities() -> Opportunities:
    why = (
        WhyLeft("fuse-a", "its weight\nis computed", 3, {"enc.0": 2, "enc.1": 1}, ("/enc.0/Add",)),
        WhyLeft("fuse-b", "two axes", 2, {"enc.1": 2}, ("/enc.1/Add",)),
        WhyLeft(None, "no pass came near", 1, {"": 1}, ("\x1b[31mAdd",)),
    )
    patterns = (
        PatternCount("sums", "MatMul + Add", False, 9, 6, {"enc.0": 9}, why),
        PatternCount("gone", "shape chain", False, 4, 0, {"enc.0": 4}, ()),
        PatternCount("fused", "LayerNorm, one operator", True, 0, 5, {}, ()),
        PatternCount("never", "Cast after Cast", False, 0, 0, {}, ()),
    )
    before, after = Counts(120, 3, 10, 1000), Counts(90, 0, 12, 1000)
    return Opportunities("m.onnx", "portable", before, after, patterns, sample_run().passes)


def _line(text: str, start: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return " ".join(line.split())


def test_a_pattern_shows_counts_before_and_after_with_the_reason() -> None:
    text = in_terminal(opportunities_document, sample_opportunities())
    assert _line(text, "MatMul + Add") == "MatMul + Add 9 6 3× fuse-a: its weight is computed (e.g. /enc.0/Add)"
    assert _line(text, "2× fuse-b") == "2× fuse-b: two axes (e.g. /enc.1/Add)"
    assert _line(text, "1×") == "1× for other reasons"
    assert _line(text, "shape chain") == "shape chain 4 0 ·"
    assert _line(text, "LayerNorm, one") == "LayerNorm, one operator 0 5 produced by fusions"


def test_absent_patterns_are_counted_and_listed_on_request() -> None:
    assert "(1 other pattern not in this model)" in in_terminal(opportunities_document, sample_opportunities())
    assert (
        _line(in_terminal(opportunities_document, sample_opportunities(), View(verbose=True)), "Cast after Cast")
        == "Cast after Cast 0 0 ·"
    )


def test_all_reasons_are_listed_with_their_modules_on_request_and_names_are_escaped() -> None:
    text = in_terminal(opportunities_document, sample_opportunities(), View(verbose=True))
    assert "3× fuse-a: its weight is computed (in enc.0, enc.1)" in text
    assert "1× no pass came near (in (model))" in text
    assert "\x1b" not in in_terminal(opportunities_document, replace(sample_opportunities(), path="\x1b[31m"))


def test_passes_show_what_they_would_do() -> None:
    applying = [record for record in sample_opportunities().passes if record.rewrites]
    text = in_terminal(opportunities_document, sample_opportunities())
    assert applying
    assert all(f"  {record.name}" in text for record in applying)
    refused = next(group for record in sample_opportunities().passes for group in record.refusals)
    assert refused.reason not in text
    assert refused.reason in in_terminal(opportunities_document, sample_opportunities(), View(verbose=True))


def test_the_summary_line_has_the_totals() -> None:
    sentence = "optimizing for portable would give 120 → 90 nodes (−25 %); 6 of 13 pattern matches would be left"
    assert opportunities_sentence(sample_opportunities()) == sentence
    assert in_terminal(opportunities_document, sample_opportunities()).splitlines()[-1] == sentence
