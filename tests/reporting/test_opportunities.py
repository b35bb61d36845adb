"""The output of `inspect --opportunities`: what each pass would rewrite, and what it would skip."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from reporting.written import in_terminal
from sardonyx.records.inspection import Opportunities
from sardonyx.records.run import Counts, RefusalGroup
from sardonyx.reporting.document import View
from sardonyx.reporting.inspection import opportunities_document, opportunities_sentence


def sample_opportunities() -> Opportunities:
    reasons = (
        RefusalGroup("its weight\nis computed", 3, ("/enc.0/Add",), {"enc.0": 2, "enc.1": 1}),
        RefusalGroup("two axes", 2, ("/enc.1/Add",), {"enc.1": 2}),
        RefusalGroup("a third use", 1, ("\x1b[31mAdd",), {"": 1}),
    )
    first, *others = sample_run().passes
    return Opportunities(
        path="m.onnx",
        target="portable",
        before=Counts(120, 3, 10, 1000),
        after=Counts(90, 0, 12, 1000),
        passes=(replace(first, name="fuse-a", rewrites=0, nodes=0, modules={}, refusals=reasons), *others),
    )


def _line(text: str, start: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return " ".join(line.split())


def test_a_pass_shows_what_it_skips_and_why() -> None:
    text = in_terminal(opportunities_document, sample_opportunities(), View(verbose=True))
    assert _line(text, "fuse-a") == "fuse-a · · ·"
    assert _line(text, "skipped 3×: its") == "skipped 3×: its weight is computed (e.g. /enc.0/Add)"
    assert "a third use" in text


def test_the_most_frequent_reasons_are_shown_and_the_others_are_counted() -> None:
    sample = sample_opportunities()
    (first, *others) = sample.passes
    rare = tuple(RefusalGroup(f"reason {number}", 1, (), {}) for number in range(4))
    passes = (replace(first, name="fuse-z", refusals=rare), first, *(replace(each, refusals=()) for each in others))
    lines = in_terminal(opportunities_document, replace(sample, passes=passes)).splitlines()
    at = lines.index("Skipped")
    assert lines[at + 1 : at + 5] == [
        "  3× fuse-a: its weight is computed",
        "  2× fuse-a: two axes",
        "  1× fuse-z: reason 0",
        "  4 matches for 4 other reasons (-v lists them)",
    ]


def test_names_are_escaped() -> None:
    assert "\x1b" not in in_terminal(opportunities_document, sample_opportunities(), View(verbose=True))
    assert "\x1b" not in in_terminal(opportunities_document, replace(sample_opportunities(), path="\x1b[31m"))


def test_passes_show_what_they_would_rewrite() -> None:
    rewriting = [record for record in sample_opportunities().passes if record.rewrites]
    text = in_terminal(opportunities_document, sample_opportunities())
    assert rewriting
    for record in rewriting:
        assert _line(text, f"{record.name} ").startswith(f"{record.name} {record.rewrites} ")


def test_passes_without_matches_are_left_out() -> None:
    idle = replace(sample_opportunities().passes[0], name="fuse-nothing", refusals=())
    sample = replace(sample_opportunities(), passes=(*sample_opportunities().passes, idle))
    assert "fuse-nothing" not in in_terminal(opportunities_document, sample, View(verbose=True))


def test_the_summary_line_has_the_totals() -> None:
    sample = sample_opportunities()
    rewrites = sum(record.rewrites for record in sample.passes)
    skipped = sum(group.count for record in sample.passes for group in record.refusals)
    sentence = f"optimizing for portable would give 120 → 90 nodes (−25 %); {skipped} of {rewrites + skipped} matches"
    assert opportunities_sentence(sample) == f"{sentence} skipped"
    assert in_terminal(opportunities_document, sample).splitlines()[-1] == f"{sentence} skipped"
