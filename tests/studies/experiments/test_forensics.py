"""Matches of the passes over models: counts are those of each model, and findings follow the numbers."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

from sardonyx.records.study import Table
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.verbs.study.static import Forensics

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,6,8] x) => (float[n,6,8] y)
<float[8,8] w = {WEIGHT}, float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}>
{
    t = Transpose<perm = [0, 2, 1]>(x)  u = Transpose<perm = [0, 2, 1]>(t)
    m = MatMul(u, w)  y = Add(m, b)
}""".replace("WEIGHT", ", ".join(map(str, range(64))))
TWO_AXES = "an operand of the product does not have two axes"


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


def test_counts_and_reasons_are_those_of_each_model(tmp_path: Path) -> None:
    tables = _tables(tmp_path, 2)
    assert ("model-0", "merge-transposes", 1, 0) in tables["forensics"].rows
    assert ("model-1", "fuse-matmul-add", 0, 1) in tables["forensics"].rows
    assert tables["forensics_matrix"].rows == (("fuse-matmul-add", 1, 1),)
    assert ("model-1", "fuse-matmul-add", TWO_AXES, 1) in tables["why_left"].rows


def test_findings_follow_the_numbers(tmp_path: Path) -> None:
    tables = _tables(tmp_path, 3)
    rewritten = sum(row[2] for row in tables["forensics"].rows if isinstance(row[2], int))
    totals, reason = (finding.text for finding in Forensics().findings(tables))
    assert totals == f"The passes rewrite {rewritten} places and skip 3, over 3 models."
    assert reason == f"Of 3 skipped places, 3 are of fuse-matmul-add: {TWO_AXES}."
