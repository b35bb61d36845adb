"""Families: counted as right or wrong where the true family is known, not counted elsewhere."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.fleet.cells import Cell
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.verbs.study.static import CERTAIN_MODELS, Families, wilson


def _answered(name: str, known: str | None, before: str, after: str) -> CellAnswer:
    guesses = [{"family": each, "confidence": 0.5, "evidence": ["3 convolutions"]} for each in (before, after)]
    cell = Cell("families", name, "fingerprints")
    return CellAnswer(cell, Subject(name, Path(), known), {"before": guesses[0], "after": guesses[1]})


def _finding_text(*answers: CellAnswer) -> str:
    experiment = Families()
    tables = {table.name: table for table in experiment.tables(answers, StudyOptions(), {})}
    return " ".join(finding.text for finding in experiment.findings(tables))


def test_right_wrong_and_unknown() -> None:
    results = _finding_text(
        _answered("a", "mlp", "mlp", "mlp"), _answered("b", "mlp", "mlp", "other"), _answered("c", None, "mlp", "mlp")
    )
    assert "right for 1 of 2 models" in results
    assert "2 models are too few to be certain" in results
    assert "Guessed wrongly: b (mlp, guessed mlp before and other after)." in results
    assert "of b (mlp → other), out of 3 models" in results


def test_many_models_are_enough() -> None:
    results = _finding_text(*(_answered(f"m{at}", "mlp", "mlp", "mlp") for at in range(CERTAIN_MODELS)))
    assert f"for {CERTAIN_MODELS} of {CERTAIN_MODELS} models (95 %: 72% to 100%)." in results
    assert "wrongly" not in results
    assert "The passes change the guessed family of none" in results


def test_without_known_families_there_is_no_claim() -> None:
    assert "the guesses cannot be checked" in _finding_text(_answered("a", None, "mlp", "mlp"))


@given(st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_contains_the_share_and_narrows(case: tuple[int, int]) -> None:
    right, count = case
    low, high = wilson(right, count)
    assert 0 <= low <= right / count <= high <= 1
    more = wilson(10 * right, 10 * count)
    assert more[1] - more[0] <= high - low


def test_a_real_graph_is_classified_before_and_after(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y) { i = Identity(x)  y = Relu(i) }'
    )
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    subject = Subject("m", path)
    (cell,) = Families().cells(subject, StudyOptions())
    answer = Families().run(cell, subject)
    assert answer["before"]["family"] == answer["after"]["family"] == "other"
