"""Patterns before and after, over models: sums match the models, and findings follow the numbers."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

from sardonyx.records.study import Table
from sardonyx.studies.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.studies.experiments.forensics import Forensics

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,6,8] x) => (float[n,6,8] y)
{ t = Transpose<perm = [0, 2, 1]>(x)  u = Transpose<perm = [0, 2, 1]>(t)  y = Relu(u) }"""


def _tables(tmp_path: Path, count: int) -> dict[str, Table]:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    experiment, options = Forensics(), StudyOptions()
    answers: list[CellAnswer] = []
    for number in range(count):
        subject = Subject(f"model-{number}", path)
        (cell,) = experiment.cells(subject, options)
        answers.append(CellAnswer(cell, subject, experiment.run(cell, subject)))
    return {table.name: table for table in experiment.tables(answers, options, {})}


def _finding_text(tables: dict[str, Table]) -> str:
    return " ".join(finding.text for finding in Forensics().findings(tables))


def test_counts_and_reasons_are_those_of_each_model(tmp_path: Path) -> None:
    tables = _tables(tmp_path, 2)
    rows = tables["forensics"].rows
    assert ("model-1", "nodes", "all nodes", False, 3, 1) in rows
    assert ("model-0", "transpose-chains", "Transpose after Transpose", False, 1, 0) in rows
    assert ("Transpose after Transpose", "1 → 0", "1 → 0") in tables["forensics_matrix"].rows
    assert "2 before the passes, 0 after, over 2 models" in _finding_text(tables)
    assert "All gone: Transpose after Transpose (2)." in _finding_text(tables)


def _with(before: int, after: int) -> dict[str, Table]:
    row = ("m", "gelus", "GELU, decomposed", False, before, after)
    columns = ("model", "pattern", "what", "made_by_fusions", "before", "after")
    why = (("m", "gelus", "fuse-gelu", "it is odd", after),) if after else ()
    return {
        "forensics": Table("forensics", "", columns, (row,)),
        "why_left": Table("why_left", "", ("model", "pattern", "pass", "reason", "places"), why),
    }


def test_findings_follow_the_numbers() -> None:
    assert "More than before: GELU, decomposed (1 → 2)" in _finding_text(_with(1, 2))
    assert "More than before" not in _finding_text(_with(2, 1))
    assert "Of 1 pattern left, 1 is skipped by fuse-gelu because: it is odd." in _finding_text(_with(2, 1))
    assert "All gone: GELU" in _finding_text(_with(2, 0))
    assert "None of the patterns" in _finding_text(_with(0, 0))
