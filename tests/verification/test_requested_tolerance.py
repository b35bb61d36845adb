"""A tolerance of the user's own: the rule of numpy.allclose, a verdict beside ours, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sardonyx
from sardonyx.cli.main import run
from sardonyx.verification.output_comparison import Tolerance

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
NUMBERS = np.array([0.0, -0.0, 1.0, 1.001, -3.0, np.inf, -np.inf, np.nan], np.float32)
FLOATS = arrays(np.float32, 5, elements=st.sampled_from(list(NUMBERS)))


def model(scale: str) -> onnx.ModelProto:
    body = f"agraph (float[n] x) => (float[n] y) <float s = {{{scale}}}> {{ y = Mul(x, s) }}"
    return onnx.parser.parse_model(f"{HEAD}\n{body}")


@given(FLOATS, FLOATS, st.sampled_from([0.0, 1e-6, 0.01]), st.sampled_from([0.0, 0.1]))
def test_floats_match_as_numpy_has_it(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> None:
    # numpy bounds the error by its second argument
    expected = np.allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
    assert (Tolerance(rtol, atol).failures(["y"], [a], [b], frozenset()) == []) == expected


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 elements differ"),
        (np.ones(1, np.float32), np.ones(1), "float64[1] instead of float32[1]"),
        (np.ones(1, np.float32), np.ones((1, 1), np.float32), "float32[1, 1] instead of float32[1]"),
        ([np.ones(1)], [], "another kind of value, or another number of values"),
        ({"k": 1.0}, {"k": 2.0}, "1 of 1 elements are outside, the worst by 1 at []"),
        (np.array([1 + 1j]), np.array([1 + 0j]), "1 of 1 elements are outside, the worst by 1 at [0]"),
    ],
)
def test_other_values_must_agree(a: Any, b: Any, line: str) -> None:
    assert Tolerance(0.1, 0.1).failures(["y"], [a], [b], frozenset()) == [f"output 'y': {line}"]
    assert Tolerance(0.1, 0.1).failures(["y"], [a], [a], frozenset()) == []


def test_both_verdicts_are_in_the_record() -> None:
    loose = sardonyx.verify(model("1.0"), model("1.001"), rtol=0.01)
    assert loose.requested is not None
    assert (loose.passed, loose.requested.passed, loose.accepted) == (False, True, True)
    assert (loose.requested.rtol, loose.requested.atol) == (0.01, 0.0)
    strict = sardonyx.verify(model("1.0"), model("1.0000001"), rtol=0.0)
    assert strict.requested is not None
    assert (strict.passed, strict.requested.passed, strict.accepted) == (True, False, False)
    assert "elements are outside" in strict.requested.failures[0]
    assert sardonyx.verify(model("1.0"), model("1.0")).requested is None
    with pytest.raises(sardonyx.UsageError, match="not a tolerance"):
        sardonyx.verify(model("1.0"), model("1.0"), atol=float("nan"))


def test_a_model_that_does_not_run_is_outside_of_any_tolerance() -> None:
    other = onnx.parser.parse_model(f"{HEAD}\nagraph (float[n] x) => (float[m] z) {{ z = Neg(x) }}")
    verdict = sardonyx.verify(model("1.0"), other, rtol=1e9, atol=1e9)
    assert verdict.requested is not None
    assert not verdict.requested.passed


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        ((), 3, "verification failed"),
        (("--rtol", "0.01"), 0, "within rtol 0.01 and atol 0 on 7 trials (not within the derived tolerance)"),
        (("--atol", "1e-9"), 3, "not within rtol 0 and atol 1e-09 on 7 trials (not within the derived tolerance)"),
    ],
)
def test_the_exit_code_follows_the_requested_tolerance(
    flags: tuple[str, ...], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, scale in zip(paths, ("1.0", "1.001"), strict=True):
        onnx.save(model(scale), path)
    assert run(["verify", *map(str, paths), *flags]) == code
    assert capsys.readouterr().out.rstrip().rpartition("\n")[2].startswith(sentence)
