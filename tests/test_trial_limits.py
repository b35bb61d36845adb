"""Default verification of models with hostile sizes ends in time and within the limit on memory."""

from __future__ import annotations

import onnx
import pytest

import trial_limits

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[2, 3, 4, 5, 6, 7, 8, 9] x, float[9] w) => (float[2, 3, 4, 5, 6, 7, 8, 9] y)
    { a = Mul (x, w) y = Softmax (a) }"""


@pytest.mark.slow
def test_changes_of_a_model_are_verified_within_the_limits() -> None:
    outcomes = trial_limits.campaign([("softmax", onnx.parser.parse_model(TEXT))], ["open", "unsorted"], jobs=1)
    assert [each.kind for each in outcomes] == ["verified", "verified"]
    assert not [each for each in outcomes if each.fault]
    assert "only small sizes were tried" in outcomes[0].text


def test_a_process_that_needs_too_much_is_a_fault() -> None:
    assert trial_limits.Outcome("a", "verified", "", 61.0, 10.0).fault == "61 s"
    assert trial_limits.Outcome("a", "ModelError", "", 1.0, 2049.0).fault == "2049 MB"
    assert not trial_limits.Outcome("a", "ModelError", "no", 1.0, 10.0).fault
