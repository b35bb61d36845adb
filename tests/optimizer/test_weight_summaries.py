"""What a run records of single nodes: attributes, names and types of values, and the numbers of constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.verbs.optimize.run_tables import HISTOGRAM_BINS, shortened, summaries, summary

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N, 2] x, bool c) => (float[N, 2] y) <float[2, 2] w = {1, -2, 3, 4}> {
    a = MatMul(x, w)
    b = Transpose<perm = [0, 1]>(a)
    y = If(c) <then_branch = yes () => (float[N, 2] d) { a = Relu(x)  d = Exp(a) },
               else_branch = no () => (float[N, 2] e) { e = Clip(b, , ) }>
}"""


@pytest.fixture(scope="module")
def run() -> sardonyx.Run:
    return sardonyx.optimize(onnx.parser.parse_model(MODEL), only=["fold-constants"], verify="off")


def test_nodes_have_their_attributes_and_values(run: sardonyx.Run) -> None:
    wiring = run.wiring_before
    assert wiring is not None
    at = {op: place for place, op in enumerate(wiring.ops)}
    assert wiring.attributes[at["Transpose"]] == {"perm": "0, 1"}
    assert wiring.attributes[at["If"]] == {}, "bodies are parts of the graph"
    assert (wiring.operands[at["MatMul"]], wiring.results[at["MatMul"]]) == (("x", "w"), ("a",))
    assert wiring.operands[at["Clip"]] == ("b", "")
    assert wiring.types[wiring.value_types["x"]] == "float[N,2]"
    assert "a" not in wiring.value_types, "it is another value in a body"
    weight = wiring.weights["w"]
    assert (weight.type, weight.low, weight.high, sum(weight.histogram)) == ("float[2,2]", -2.0, 4.0, 4)


def test_histograms_count_every_finite_number() -> None:
    values = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    made = summary(ir.tensor(values, name="w"))
    finite = values[np.isfinite(values)]
    assert (made.low, made.high) == (float(finite.min()), float(finite.max()))
    assert len(made.histogram) == HISTOGRAM_BINS
    assert (sum(made.histogram), made.not_finite) == (997, 3)


@pytest.mark.parametrize(
    ("array", "low", "high"),
    [
        (np.zeros((3,), np.int64), 0.0, 0.0),
        (np.zeros((0, 4), np.float32), None, None),
        (np.array([np.nan], np.float16), None, None),
        (np.array([True, False]), 0.0, 1.0),
    ],
)
def test_constants_of_any_kind(array: np.ndarray, low: float | None, high: float | None) -> None:
    made = summary(ir.tensor(array, name="w"))
    assert (made.low, made.high) == (low, high)


def test_large_constants_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.verbs.optimize.run_tables._MAX_GRAPH_ELEMENTS", 10)
    tensors = {f"w{size}": ir.tensor(np.ones(size, np.float32), name=f"w{size}") for size in (7, 8, 2)}
    made = summaries(tensors)
    assert list(made) == ["w7", "w8", "w2"]
    assert {name: each.low is not None for name, each in made.items()} == {"w7": True, "w8": False, "w2": True}
    assert len(shortened(tuple(range(1000)))) == 200
