"""The campaign over hand-written modules: its cases run, and a file that is wrong and says nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unusual
from unusual_modules import CASES


def test_there_are_many_cases_with_inputs_of_two_sizes() -> None:
    assert len(CASES) >= 60
    for name in ("keyword-only", "nested-arguments", "packed-sequence"):
        assert all(unusual.differing_axes(CASES[name]()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer"), [("called-twice", "right"), ("counter-in-a-buffer", "wrong: other values")]
)
def test_a_file_that_forgets_its_state_is_wrong(name: str, answer: str, tmp_path: Path) -> None:
    case = CASES[name]()
    path = tmp_path / "model.onnx"
    batch = {"x": {0: "batch"}}
    arguments, _ = unusual.call_of(case.example)
    torch.onnx.export(case.module.eval(), arguments, path, dynamo=False, input_names=["x"], dynamic_axes=batch)
    assert unusual.judged(path, case, ["x"], {"right": unusual.expected(CASES[name]())}) == answer


def test_only_a_wrong_file_without_a_note_is_silent() -> None:
    def row(answer: str, *notes: str) -> unusual.Row:
        return {"kind": "k", "ours": {"answer": answer, "notes": ["x=1 generated as data", *notes]}, "plain": {}}

    rows = {
        "good": row("right"),
        "bad": row("wrong: other values"),
        "said": row("wrong: other values", "batch stays 2"),
    }
    rows["refused"] = {"kind": "k", "ours": {"error": "no"}, "plain": {"answer": "right"}}
    assert unusual.silent(rows) == ["bad"]
    assert any("not: refused" in line for line in unusual.summary(rows))
    assert "| refused | k | error | right |  | no |" in unusual.table(rows)
