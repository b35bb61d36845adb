"""Chains of shape arithmetic: the inputs they depend on are distinguished from those they pass on."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from sardonyx.ir import io
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.verbs.study.static import DATA, DYNAMIC, STATIC, ShapeChains, chains_of

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
OPEN_DIM = """g (float[n,6,8] x, float[k,48] z) => (float y)
<int64 zero = {0}, int64[1] axes = {0}, int64[1] rest = {48}>
{ s = Shape(x)  d = Gather(s, zero)  u = Unsqueeze(d, axes)  c = Concat<axis = 0>(u, rest)  y = Reshape(x, c) }"""
KNOWN_DIM = """g (float[n,6,8] x) => (float y)
<int64 one = {1}, int64[1] axes = {0}, int64[1] rest = {-1}>
{ s = Shape(x)  d = Gather(s, one)  u = Unsqueeze(d, axes)  c = Concat<axis = 0>(rest, u)  y = Reshape(x, c) }"""
DATA_DIM = """g (float[n] x) => (float y)
<int64 zero = {1}, int64[1] axes = {0}>
{ f = NonZero(x)  s = Shape(f)  d = Gather(s, zero)  u = Unsqueeze(d, axes)  y = ConstantOfShape(u) }"""
PICKED = """g (float[n,m] x) => (float y)
<int64[1] one = {1}>
{ s = Shape(x)  d = Gather(s, one)  w = ConstantOfShape(d)  y = Expand(w, d) }"""


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


@pytest.mark.parametrize(
    ("text", "depends_on", "dims", "feeds", "nodes"),
    [
        (OPEN_DIM, DYNAMIC, ["n"], ["Reshape"], 4),
        (KNOWN_DIM, STATIC, [], ["Reshape"], 4),
        (DATA_DIM, DATA, [], ["an output"], 4),
        (PICKED, DYNAMIC, ["m"], ["Expand"], 3),
    ],
)
def test_a_chain_depends_on_what_it_passes_on(
    text: str, depends_on: str, dims: list[str], feeds: list[str], nodes: int
) -> None:
    (chain,) = chains_of(io.from_proto(_model(text)))
    assert chain["depends_on"] == depends_on
    assert chain["dims"] == dims
    assert chain["feeds"] == feeds
    assert isinstance(chain["nodes"], list)
    assert len(chain["nodes"]) == nodes


def _study(tmp_path: Path, **texts: str) -> tuple[dict[str, list[tuple[object, ...]]], list[str]]:
    experiment, options, answers = ShapeChains(), StudyOptions(), list[CellAnswer]()
    for name, text in texts.items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(_model(text), path)
        subject = Subject(name, path)
        (cell,) = experiment.cells(subject, options)
        answers.append(CellAnswer(cell, subject, experiment.run(cell, subject)))
    tables = {table.name: table for table in experiment.tables(answers, options, {})}
    findings = [finding.text for finding in experiment.findings(tables)]
    return {name: list(table.rows) for name, table in tables.items()}, findings


def test_static_sizes_are_folded_and_dynamic_ones_are_reported(tmp_path: Path) -> None:
    tables, (finding,) = _study(tmp_path, known=KNOWN_DIM, data=DATA_DIM)
    assert tables["shape_chains"] == [("known", 1, 0, 4, 0, 4, 0), ("data", 1, 1, 4, 2, 4, 2)]
    assert ("data", "after", DATA, None, "an output", 1, 2) in tables["shape_chain_kinds"]
    assert finding == (f"Of 2 chains of shape arithmetic in 2 models, the passes leave 1: 1 for {DATA}.")


def test_a_model_without_chains_is_reported(tmp_path: Path) -> None:
    _, (finding,) = _study(tmp_path, plain="g (float[n] x) => (float[n] y) { y = Relu(x) }")
    assert finding == "No chain of shape arithmetic in 1 model, before or after."
