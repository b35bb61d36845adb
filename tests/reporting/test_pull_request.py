"""Markdown for pull requests: the summary first, complete, never too long, and no name breaks the markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from reporting.sample_run import failed_verdict
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.records.run import ModuleCount, RefusalGroup, RolledBack
from sardonyx.reporting.pull_request import MAX_TEXT, pull_request, pull_request_of_two
from sardonyx.reporting.run_bundle import RunBundle

WHOLE = sample_run_bundle()
GITHUB = 65_536
OURS = re.compile(r"</?(details|summary)>")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ("<script>x</script>", "a|b", "`c`", "[d](javascript:e)", "</details>", "\x1b[31m", "f\n\n# g", "<!--", "```")
)


def hostile(name: str, times: int = 1) -> RunBundle:
    """A bundle in which everything with a name has this name."""
    run = WHOLE.run
    modules = tuple(ModuleCount(f"{name}{place}", name, 3, 2) for place in range(times))
    refused = tuple(RefusalGroup(f"{name}{place}", times - place, (name,)) for place in range(times))
    verdict = structs.replace(failed_verdict(), failures=(name,), reference=name)
    verdict = structs.replace(verdict, outputs=tuple(structs.replace(each, name=name) for each in verdict.outputs))
    undone = tuple(RolledBack(name, name, name, name) for _ in range(times))
    passes = (structs.replace(run.passes[0], name=name, algebra=name, refusals=refused), *run.passes[1:])
    made = structs.replace(run, modules=modules, verdict=verdict, rolled_back=undone, passes=passes, notes=(name,))
    return structs.replace(WHOLE, label=name, run=made, notes=(name,))


def test_every_part_of_a_run_follows_the_summary() -> None:
    text = pull_request([WHOLE])
    assert text.startswith("### ✅ model: 324 → 187 nodes (−42 %)")
    for part in (
        "| nodes | 324 | 187 | −42 % |",
        "| time of a run | 12.3 ms | 10.8 ms | × 0.877 \\[0.865, 0.890\\], faster |",
        "<summary>By module</summary>",
        "encoder.layer.0…11 ×12",
        "| fold-constants | f(constants) => constant | exact | 100 | −100 | −14.3 kB |",
        "would grow the model past the byte budget",
        "fuse-gemm",
        "onnxruntime",
        "ab" * 32,
        "```mermaid\nflowchart TD\n",
    ):
        assert part in text, part


def test_a_failed_verification_is_reported() -> None:
    text = pull_request([structs.replace(WHOLE, run=structs.replace(WHOLE.run, verdict=failed_verdict()))])
    assert text.startswith("### ❌ model")
    assert "DIFFERS" in text


def test_a_run_alone_has_no_empty_parts() -> None:
    run = structs.replace(WHOLE.run, verdict=None, rolled_back=(), modules=(), passes=())
    text = pull_request([RunBundle("m", run)])
    assert "time of a run" not in text
    for title in ("By module", "By pass", "Missed fusions", "Rolled back"):
        assert title not in text


def test_several_models_begin_with_a_table() -> None:
    text = pull_request([structs.replace(WHOLE, label="one"), structs.replace(WHOLE, label="two")])
    table = text.partition("###")[0]
    assert table.count("0.877") == 2
    assert text.count("### ✅") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("models", "cut"), [(1, False), (2, True), (40, True)])
def test_it_fits_into_a_comment_and_lists_what_was_left_out(models: int, cut: bool) -> None:
    long = hostile("|" * 59 + "<", times=50)
    text = pull_request([structs.replace(long, label=f"m{place}") for place in range(models)])
    assert len(text) <= MAX_TEXT < GITHUB
    assert ("Left out" in text) == cut
    assert ("and 10 more" in text) == (models == 1)
    assert ("m39" in text.rpartition("Left out")[2]) == (models == 40)
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(NAMES)
def test_no_name_breaks_the_markup(name: str) -> None:
    for text in (pull_request([hostile(name)]), pull_request_of_two(WHOLE, hostile(name))):
        without_ours = OURS.sub("", text)
        assert "<" not in without_ours
        assert all(char.isprintable() or char == "\n" for char in text)
        for block in re.split(r"\n\n", text):
            rows = [line for line in block.split("\n") if line.startswith("| ")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, rows


def test_two_runs_are_compared_in_text_and_tables() -> None:
    first, run = WHOLE, WHOLE.run
    passes = (structs.replace(run.passes[0], rewrites=20, nodes=-20), *run.passes[1:])
    second = structs.replace(
        first, run=structs.replace(run, after=structs.replace(run.after, nodes=192), passes=passes)
    )
    text = pull_request_of_two(first, second)
    assert "187 → 192 nodes (+5)" in text
    assert "| eliminate-identity |  | 25 → 20 | −25 → −20 | · |" in text
    assert "merge-reshapes" not in text
