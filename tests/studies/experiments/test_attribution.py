"""The figures of each pass add up to the pipeline's record, and only graphs that differ are timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from narrowing import number
from sardonyx import optimize
from sardonyx.records.study import Table
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verbs.study import experiment
from sardonyx.verbs.study.effects import Attribution, Overview
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2,3] x) => (float[2,3] y) <float one = {1}> {
  a = Identity(x)
  b = Mul(a, one)
  c = Relu(b)
  d = Relu(b)
  y = Add(c, d)
}"""


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "small.onnx")
    return Subject("small", tmp_path / "small.onnx")


def rows(table: Table) -> list[dict[str, object]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def answered(subject: Subject) -> list[CellAnswer]:
    options, attribution = StudyOptions(seconds=0.05), Attribution()
    first = [CellAnswer(cell, subject, attribution.run(cell, subject)) for cell in attribution.cells(subject, options)]
    more = attribution.then(subject, first, options)
    return first + [CellAnswer(cell, subject, attribution.run(cell, subject)) for cell in more]


def test_counts_match_the_record_of_the_pipeline(small_model: Callable[[str, str], Path]) -> None:
    subject = Subject("bert", small_model("bert", "torchscript"))
    graphs = Attribution().run(Attribution().cells(subject, StudyOptions())[0], subject)
    run = optimize(subject.path, verify="off")
    fired = {each.name: each for each in run.passes if each.rewrites}
    within = {each["name"]: each["within"] for each in graphs["passes"] if each["within"]["rewrites"]}
    assert within.keys() == fired.keys()
    for name, tally in within.items():
        assert (tally["rewrites"], tally["nodes"]) == (fired[name].rewrites, fired[name].nodes)
        assert (tally["constants"], tally["bytes"]) == (fired[name].constants, fired[name].bytes)
    assert graphs["source"]["nodes"] == run.before.nodes
    assert graphs["whole"]["nodes"] == run.after.nodes
    (_, matrix, _) = Attribution().tables(
        [CellAnswer(Attribution().cells(subject, StudyOptions())[0], subject, graphs)], StudyOptions(), {}
    )
    (row,) = rows(matrix)
    removed = [number(row[name]) for name in matrix.columns[2:-2]]
    assert sum(removed) == row["removed"] == run.before.nodes - run.after.nodes


@pytest.mark.slow
def test_alone_and_without_match_runs_of_the_pipeline(subject: Subject) -> None:
    graphs = answered(subject)[0].answer
    alone = {each["name"] for each in graphs["passes"] if each.get("alone", {}).get("rewrites")}
    by_hand = set()
    for each in select("portable"):
        only = optimize(subject.path, verify="off", only=[each.name])
        if only.events:
            by_hand.add(each.name)
        entry = next((one for one in graphs["passes"] if one["name"] == each.name), {})
        if "without" in entry:
            rest = optimize(subject.path, verify="off", skip=[each.name])
            assert entry["without"]["nodes"] == rest.after.nodes
    assert alone == by_hand
    assert "eliminate-identity" in alone


def test_a_pass_whose_work_another_one_does_is_listed(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[n,6] x) => (float[n,6] y) <int64 one = {1}, int64[1] axes = {0}, int64[1] rest = {-1}> {
      s = Shape(x)  d = Gather(s, one)  u = Unsqueeze(d, axes)  c = Concat<axis = 0>(rest, u)  y = Reshape(x, c)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "size.onnx")
    subject = Subject("size", tmp_path / "size.onnx")
    graphs = Attribution().run(Attribution().cells(subject, StudyOptions())[0], subject)
    entries = {each["name"]: each for each in graphs["passes"]}
    assert entries["fold-shapes"]["within"]["rewrites"]
    assert entries["fuse-shape-gather"]["alone"]["rewrites"] > entries["fuse-shape-gather"]["within"]["rewrites"] == 0


@pytest.mark.slow
def test_only_graphs_that_differ_are_timed(subject: Subject) -> None:
    answers = answered(subject)
    counts, _, times = Attribution().tables(answers, StudyOptions(), {})
    source, whole = answers[0].answer["source"]["shape"], answers[0].answer["whole"]["shape"]
    assert source != whole
    timed = {(row["pass"], row["how"]) for row in rows(times)}
    assert ("all", "all") in timed
    needed = {row["pass"] for row in rows(counts) if row["needed"]}
    assert {name for name, how in timed if how == "without"} == needed
    assert all(number(row["low"]) <= number(row["ratio"]) <= number(row["high"]) for row in rows(times))
    cell = answers[-1].cell
    assert cell.timed
    assert len(cell.options["alone"]) == len(
        {
            entry["alone"]["shape"]
            for entry in answers[0].answer["passes"]
            if entry.get("alone", {}).get("shape") not in (None, source)
        }
    )


def test_nothing_is_timed_where_nothing_applies(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "plain.onnx")
    answers = answered(Subject("plain", tmp_path / "plain.onnx"))
    assert len(answers) == 1
    tables = {table.name: table for table in Attribution().tables(answers, StudyOptions(), {})}
    (findings,) = Attribution().findings(tables)
    assert findings.text == "No pass removes a node from any model."


@pytest.mark.slow
def test_the_overview_has_the_verification_and_the_time(subject: Subject) -> None:
    options, overview = StudyOptions(seconds=0.05), Overview()
    answers = [CellAnswer(cell, subject, overview.run(cell, subject)) for cell in overview.cells(subject, options)]
    (table,) = overview.tables(answers, options, {})
    (row,) = rows(table)
    run = optimize(subject.path)
    assert (row["nodes_before"], row["nodes_after"]) == (run.before.nodes, run.after.nodes) == (5, run.after.nodes)
    assert row["passed"] is True
    assert row["max_error"] == 0
    assert number(row["low"]) <= number(row["ratio"]) <= number(row["high"])
    (untimed,) = rows(overview.tables(answers[:1], options, {})[0])
    assert untimed["ratio"] is untimed["finding"] is None


def finding(verdict: str, models: int) -> str:
    columns = ("model", "pass", "how", *experiment.TIMES, "same_graph_as")
    made = [(f"m{index}", "fuse-x", "without", 1.1, 1.05, 1.2, 0.01, verdict, 20, None) for index in range(models)]
    table = Table("attribution_time", "", columns, tuple(made))
    counts = Table("attribution", "", ("pass", "within_nodes"), ())
    return Attribution().findings({"attribution": counts, "attribution_time": table})[-1].text


def test_findings_about_times_follow_the_verdicts() -> None:
    assert finding("slower", 2) == "fuse-x saves time: without it 2 of 2 models are slower (m0, m1)."
    assert finding("faster", 2) == "fuse-x costs time: without it 2 of 2 models are faster (m0, m1)."
    assert finding("slower", 1).endswith("one model alone is not enough to be certain.")
    assert "none is faster or slower" in finding("no difference", 3)
