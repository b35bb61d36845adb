"""Distances follow their definition, and the recommended tolerance covers the observed ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowing import number
from sardonyx.records.study import Table
from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.verbs.study.tolerance import MARGIN_FACTOR, Distances, Tolerance, affordable, recommended_in_eps

EPS = 2.0**-23
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,16] x) => (float[n,16] y, int64[n] z)
<float[16,16] w = {WEIGHT}, float[16] b = {BIAS}, float[16] scale = {BIAS}>
{ i = Identity(x)  m = MatMul(i, w)  a = Add(m, b)  y = Mul(a, scale)  z = ArgMax<axis = 1, keepdims = 0>(y) }"""


def _distances(*trials: tuple[list[float], list[float]]) -> dict[str, Any]:
    seen = Distances()
    for reference, result in trials:
        seen.add(np.array(reference, np.float32), np.array(result, np.float32))
    return seen.as_json()


def test_distances_by_hand() -> None:
    distances = _distances(([1.0, 2.0, 4.0, 0.0], [1.0, 2.0 + 4 * EPS, 4.0, 0.0]), ([1.0], [1.0]))
    assert (distances["trials"], distances["equal_trials"], distances["elements"], distances["equal"]) == (2, 1, 5, 4)
    assert distances["abs"]["max"] == 4 * EPS
    assert distances["rel"]["max"] == 2 * EPS
    assert distances["ulp"]["max"] == 2.0
    assert distances["scaled"]["max"] == EPS  # the median size is 2
    assert distances["abs"]["mean"] == 4 * EPS / 5
    assert distances["histogram"] == [[None, 4], [0, 1]]


def test_nan_equals_only_nan() -> None:
    assert _distances(([np.nan, 1.0], [np.nan, 1.0]))["equal"] == 2
    distances = _distances(([1.0, 1.0], [np.nan, 1.0]))
    assert (distances["equal"], distances["pattern"]) == (1, "NaN in 1 of 2 elements where the reference has none")


def test_integers_are_counted_and_have_no_distribution() -> None:
    seen = Distances()
    seen.add([np.array([1, 2]), np.array([3])], [np.array([1, 5]), np.array([3])])  # a sequence
    seen.add(np.zeros((0, 3)), np.zeros((0, 3)))
    distances = seen.as_json()
    assert (distances["trials"], distances["equal"], distances["elements"], distances["scaled"]) == (2, 2, 3, None)


@given(st.floats(1e-6, 1e6))
def test_the_recommended_tolerance_has_the_margin_once(most: float) -> None:
    assert MARGIN_FACTOR * most <= recommended_in_eps(most) < 2.0001 * MARGIN_FACTOR * most


def test_large_models_get_fewer_trials() -> None:
    assert [affordable(flops, 4) for flops in (0, 10**6, 3 * 10**9, 9 * 10**9)] == [
        (4, None),
        (4, None),
        (2, None),
        (1, 2),
    ]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> CellAnswer:
    rng = np.random.default_rng(0)
    weight, bias = (", ".join(f"{x:.4f}" for x in rng.normal(size=size)) for size in (256, 16))
    path = tmp_path_factory.mktemp("tolerance") / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.replace("WEIGHT", weight).replace("BIAS", bias)), path)
    experiment, subject = Tolerance(), Subject("m", path)
    (cell,) = experiment.cells(subject, StudyOptions())
    return CellAnswer(cell, subject, json.loads(json.dumps(experiment.run(cell, subject))))


def test_accuracy_classes_are_counted_separately(answered: CellAnswer) -> None:
    table, by_class, spread = Tolerance().tables([answered], StudyOptions(), {})
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    exact = [row for row in rows if row["class"] == "exact"]
    assert [row["output"] for row in exact] == ["y", "z"]
    assert all(row["equal_share"] == 1.0 and row["passed"] for row in exact)
    (loose,) = (row for row in rows if row["class"] == "reassociates" and row["output"] == "y")
    assert 0 < number(loose["max_scaled"]) <= number(loose["granted"])
    assert number(loose["rewrites"]) > number(exact[0]["rewrites"])
    assert [row[0] for row in by_class.rows] == ["exact", "reassociates"]
    for accuracy in ("exact", "reassociates"):  # the histogram counts every element
        elements = sum(number(row["elements"]) for row in rows if row["class"] == accuracy and row["output"] == "y")
        assert sum(number(row[3]) for row in spread.rows if row[1] == accuracy) == elements


def _class(answered: CellAnswer, **changes: float | int) -> str:
    tables = {table.name: table for table in Tolerance().tables([answered], StudyOptions(), {})}
    table = tables["tolerance_by_class"]
    row = dict(zip(table.columns, table.rows[1], strict=True)) | changes
    one = Table(table.name, table.title, table.columns, (tuple(row.values()),))
    return " ".join(finding.text for finding in Tolerance().findings({"tolerance_by_class": one}))


def test_findings_follow_the_numbers(answered: CellAnswer) -> None:
    assert "the verification allows 64 eps, which is enough" in _class(answered)
    assert "at most 18.8% of such trials" in _class(answered, trials=16)
    assert "too few trials to be certain" in _class(answered, trials=9)
    assert "too few" not in _class(answered, trials=10)
    assert "bit-identical" in _class(answered, max_scaled_in_eps=0.0)
    assert "bit-identical" not in _class(answered)
    assert "without that margin" in _class(answered, max_scaled_in_eps=50.0, recommended_in_eps=128.0)
    assert "above the 64 eps" in _class(answered, max_scaled_in_eps=65.0, recommended_in_eps=256.0)
    assert "the verification fails for 1 model" in _class(answered, failed_models=1)
    assert "No pass of the class exact or approximates changed anything" in _class(answered)
