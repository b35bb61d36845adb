"""A correlation is claimed only if enough models show it and no single one causes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from msgspec.structs import replace

from sardonyx.fleet.cells import Cell
from sardonyx.records.study import Finding, Table
from sardonyx.verbs.study.effects import CERTAIN_MODELS, Correlation
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject

# Nodes saved and time saved in per cent, as notes on an earlier system have them: one outlier hides all the rest.
NOTES = {
    "mobilenet-v2": (0, 0.5), "efficientnet": (17, 0.3), "resnet": (32, 3.7), "mobilenet-v3": (19, 1.8),
    "bert": (5, 1.7), "distilbert": (5, 0.9), "roberta": (5, 11.8), "whisper-tiny": (5, 0.8), "whisper-base": (5, 0.2),
    "deit": (14, -0.4), "vit": (6, 0.1), "yolo": (0, 0.2),
}  # fmt: skip


def _tables(points: dict[str, tuple[float, float]], finding: str = "faster") -> dict[str, Table]:
    """Tables of models that save these shares of nodes and time, and nothing else."""
    overview = Table(
        "overview", "", ("model", "ratio", "low", "high", "finding"),
        tuple((name, 1 - time, 0.99 - time, 1.01 - time, finding) for name, (_, time) in points.items()),
    )  # fmt: skip
    before = {"nodes": 1000.0, "bytes": 10, "flops": 10, "traffic": 10}
    answers = [
        CellAnswer(
            Cell("correlation", name, "costs"), Subject(name, Path()),
            {"before": before, "after": before | {"nodes": 1000 * (1 - nodes)}},
        )
        for name, (nodes, _) in points.items()
    ]  # fmt: skip
    return {table.name: table for table in Correlation().tables(answers, StudyOptions(), {"overview": overview})}


def _first_finding(points: dict[str, tuple[float, float]]) -> Finding:
    return Correlation().findings(_tables(points))[0]


def test_the_known_outlier_is_named_with_the_correlation_it_hides() -> None:
    points = {name: (nodes / 100, time / 100) for name, (nodes, time) in NOTES.items()}
    finding = _first_finding(points)
    assert not finding.certain
    assert "r = 0.08" in finding.text
    assert "without roberta r = 0.6" in finding.text
    table = _tables(points)["correlation"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["r"] == pytest.approx(0.08, abs=0.01)
    assert row["r_without_it"] == pytest.approx(0.67, abs=0.01)


def _line(count: int, slope: float, noise: float, seed: int = 0) -> dict[str, tuple[float, float]]:
    rng = np.random.default_rng(seed)
    x = np.linspace(0.1, 0.6, count)
    y = slope * x + noise * rng.standard_normal(count)
    return {f"m{at}": (float(x[at]), float(y[at])) for at in range(count)}


def test_a_clear_line_is_claimed_with_the_sign_of_its_slope() -> None:
    assert _first_finding(_line(20, 0.5, 0.02)).text.startswith(
        "Saved nodes correlate positively with saved time: r = 0.9"
    )
    assert _first_finding(_line(20, 0.5, 0.02)).certain
    assert _first_finding(_line(20, -0.5, 0.02)).text.startswith("Saved nodes correlate negatively with saved time")


def test_few_models_give_no_claim() -> None:
    finding = _first_finding(_line(CERTAIN_MODELS - 2, 0.5, 0.02))
    assert not finding.certain
    assert finding.text.startswith("Too few models to tell whether saved nodes correlate with saved time: r = 0.9")
    assert "too few for a correlation" in _first_finding(_line(3, 0.5, 0.02)).text


def test_times_within_the_noise_correlate_with_nothing() -> None:
    (finding,) = Correlation().findings(_tables(_line(20, 0.5, 0.02), "no difference"))
    assert not finding.certain
    assert finding.text == "The time of 0 of 20 models differs beyond the noise: too few for a correlation."


def test_one_outlier_is_no_correlation() -> None:
    points = _line(15, 0.0, 0.02) | {"giant": (5.0, 5.0)}
    finding = _first_finding(points)
    assert not finding.certain
    assert "giant" in finding.text


def test_noise_is_rarely_called_certain() -> None:
    claims = [_first_finding(_line(12, 0.0, 0.05, seed)).certain for seed in range(60)]
    assert sum(claims) <= 6


@pytest.mark.parametrize(("lowest", "claimed"), [(0.85, True), (0.5, False), (-0.1, False)])
def test_a_claim_holds_without_any_single_model(lowest: float, claimed: bool) -> None:
    tables = _tables(_line(20, 0.5, 0.02))
    table = tables["correlation"]
    row = dict(zip(table.columns, table.rows[0], strict=True)) | {"r": 0.9, "low": 0.3, "high": 0.95}
    row |= {"r_without_it": lowest, "lowest_r_without_one": lowest, "highest_r_without_one": 0.92}
    changed = tables | {"correlation": replace(table, rows=(tuple(row.values()),))}
    (finding,) = Correlation().findings(changed)
    assert finding.certain is claimed
    assert ("only because of one model" in finding.text) is not claimed


def test_a_constant_is_not_correlated() -> None:
    findings = Correlation().findings(_tables(_line(12, 0.5, 0.02)))
    assert [("do not vary" in finding.text, finding.certain) for finding in findings[1:]] == 3 * [(True, False)]


def test_savings_are_counted_on_the_graphs(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,4] x) => (float[n,4] y) { i = Identity(x)  j = Neg(i)  k = Transpose<perm = [1, 0]>(j)
    l = Transpose<perm = [1, 0]>(k)  y = Relu(l) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    subject = Subject("m", path)
    (cell,) = Correlation().cells(subject, StudyOptions())
    answer = Correlation().run(cell, subject)
    assert (answer["before"]["nodes"], answer["after"]["nodes"]) == (5, 2)
    assert answer["before"]["traffic"] == 4 * 2 * 16  # a batch of one: four operations move 16 bytes in and out
    assert answer["after"]["traffic"] == 2 * 2 * 16
