"""What the outputs of a model are: scores of classes, embeddings or other numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.ir import io
from sardonyx.verbs.quantize.budget import find_task

CLASSES, NUMBERS, EMBEDDINGS = ("top1>=0.99", "relative_l2<=0.05"), ("relative_l2<=0.01",), ("cosine>=0.999",)
BODIES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "probabilities": ("[n, 10]", "[n, 10]", "a = Softmax (x) y = Identity (a)", CLASSES),
    "a map of probabilities": ("[n, 10, 8, 8]", "[n, 10, 8, 8]", "y = Softmax <axis = 1> (x)", NUMBERS),
    "over a norm": (
        "[n, 9]",
        "[n, 9]",
        "a = ReduceL2 <axes = [1]> (x) b = Max (a, e) y = Div (x, b)",
        EMBEDDINGS,
    ),
    "normalized": ("[n, 10]", "[n, 10]", "y = LpNormalization (x)", EMBEDDINGS),
    "rows of a pooled tensor": ("[n, 128]", "[n, 128]", "y = Tanh (x)", EMBEDDINGS),
    "scaled detections": ("[n, 42, 100]", "[n, 84, 100]", "a = Sigmoid (x) y = Concat <axis = 1> (a, a)", NUMBERS),
}


def _task(given: str, made: str, body: str, y: np.ndarray) -> Any:
    constants = f"float[64, 10] w = {{{', '.join(['0.5'] * 640)}}}, float[1] e = {{1e-6}}"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float{given} x) => (float{made} y) <{constants}> {{ {body} }}'
    return find_task(io.from_proto(onnx.parser.parse_model(text)), [{"y": y}])


@pytest.mark.parametrize("name", BODIES)
def test_normalized_outputs_are_known_by_the_graph(name: str) -> None:
    given, made, body, limits = BODIES[name]
    assert _task(given, made, body, np.random.default_rng(0).standard_normal((4, 10))).limits == limits


@given(st.integers(2, 2000), st.integers(0, 9), st.booleans())
def test_logits_stand_out_and_embeddings_do_not(columns: int, seed: int, classifies: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((64, max(columns, 3 if classifies else 40)))
    if classifies:
        rows[np.arange(64), rng.integers(0, rows.shape[1], 64)] += 8
    for body in ("y = MatMul (x, w)", "a = MatMul (x, w) y = Add (a, e)"):
        found = _task("[n, 64]", "[n, 10]", body, rows)
        assert found.limits == (CLASSES if classifies else NUMBERS)
        assert ("'y' are scores of classes" in found.reason) is classifies
        assert found.classes == ({"y"} if classifies else set())


def test_rows_that_sum_to_one_are_probabilities() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(200), 16)
    body = "a = Exp (x) y = Sigmoid (a)"
    assert _task("[n, 200]", "[n, 200]", body, rows).limits == CLASSES
    assert _task("[n, 200]", "[n, 200]", body, rows - 0.01).limits == EMBEDDINGS


def test_integers_are_equal_or_not() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[n, 10] x) => (int64[n] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }"""
    found = find_task(io.from_proto(onnx.parser.parse_model(text)), [{"y": np.arange(4)}])
    assert (found.limits, found.classes) == (("top1>=0.99",), {"y"})
