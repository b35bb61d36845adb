"""Verification on the page: each file with its hash, each step with its verdict, a broken chain marked as broken."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reporting.sample_export import sample_export
from reporting.sample_run import failed_verdict, sample_run, sample_verdict
from sardonyx.records.export import Export
from sardonyx.records.run import GeneratedBatch, Run, TokenTie
from sardonyx.reporting.page.verification import section
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import generation_lines, verdict_sentence


def rendered(run: Run, export: Export | None = None) -> str:
    return " ".join(str(section(RunBundle("m", run, export=export)).html).split())


def test_the_whole_chain_is_shown_with_hashes_and_verdicts() -> None:
    run = sample_run()
    html = rendered(run, sample_export(run.source.sha256))
    for text in (
        "bert.py:model",
        "BertModel, 120 modules",
        "model.onnx",
        "small.onnx",
        "ef" * 32,
        "ab" * 32,
        "cd" * 32,
    ):
        assert text in html
    assert html.count("verification-step verification-good") == 2
    assert html.count("accuracy class reassociates") == 2
    assert html.count("last_hidden_state") >= 2


def test_without_an_export_the_first_step_is_unknown() -> None:
    html = rendered(sample_run())
    assert "verification-step verification-unknown" in html
    assert "sardonyx export writes one with --record" in html


@pytest.mark.parametrize(("sha256", "state", "message"), [("ff" * 32, "bad", "broken"), (None, "unknown", "missing")])
def test_an_export_of_another_file_verifies_nothing(sha256: str | None, state: str, message: str) -> None:
    html = rendered(sample_run(), sample_export(sha256))
    assert f"verification-step verification-{state}" in html
    assert message in html
    assert html.count("accuracy class reassociates") == 1, "the export's verdict is about another file"


def test_a_failed_verification_names_the_output_and_the_reason() -> None:
    html = rendered(replace(sample_run(), verdict=failed_verdict(), status="verification-failed"))
    assert "verification-step verification-bad" in html
    assert "pooler_output differs by 0.5 with seed 3" in html
    assert '<tr class="marked"><th scope="row">pooler_output' in html


def test_rolled_back_rewrites_are_listed_and_their_absence_is_stated() -> None:
    run = sample_run()
    assert "fuse-gemm at /pooler/MatMul_out in pooler: pooler_output differs by 0.5" in rendered(run)
    assert "merge-reshapes everywhere" in rendered(run)
    assert "Nothing had to be rolled back" in rendered(replace(run, rolled_back=()))
    assert "Nothing was verified" in rendered(replace(run, rolled_back=(), verdict=None))


def test_generated_tokens_and_ties_are_shown_in_text_and_on_the_page() -> None:
    batches = (
        GeneratedBatch((7,), 12, 12, 1e-6, (), True),
        GeneratedBatch((5, 2), 12, 23, 2e-6, (TokenTie(1, 3, 17, 61, 2e-7),), True),
    )
    verdict = replace(sample_verdict(), generation=batches)
    lines = generation_lines(verdict)
    assert lines[0].startswith("generation: 35 of 36 greedy tokens equal from 3 prompts of 2 to 7 tokens (some padded)")
    assert lines[1].strip() == "tie: prompt of 2 tokens, step 4: 17 or 61, 2.0e-07 apart in PyTorch"
    assert "35 of 36 greedy tokens equal" in verdict_sentence(verdict, "a", "b")
    run = sample_run()
    html = rendered(run, replace(sample_export(run.source.sha256), verdict=verdict))
    assert all(line.strip() in html for line in lines)
