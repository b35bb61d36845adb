"""Clear differences between outputs are reported, rounding is not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sardonyx.verbs.bench.bench import output_difference

ONE = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=5), elements=st.floats(-100, 100, width=32)))
def test_a_model_agrees_with_itself_and_with_its_roundings(answer: np.ndarray[Any, Any]) -> None:
    assert output_difference([answer], [answer]) is None
    assert output_difference([answer.astype(np.float16)], [answer]) is None
    assert output_difference([answer * np.float32(1.001)], [answer]) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([ONE], [ONE, ONE], "it has 1 outputs"),
        ([ONE, -ONE], [ONE, ONE], "output 2 differs by up to 200 % of its largest number"),
        ([ONE[:1]], [ONE], r"output 1 has the shape \[1, 2\], not \[2, 2\]"),
        ([ONE * np.nan], [ONE], "not finite"),
        ([ONE > 0], [ONE], "is bool, not float32"),
        ([[ONE, ONE]], [[ONE, ONE * 2]], "output 1 differs by up to 50 %"),
        ([[ONE]], [[ONE, ONE]], "another kind"),
        ([None], [ONE], "another kind"),
        ([ONE], [ONE * 0], "output 1 differs by up to 100 %"),
        ([np.array([1, 2])], [np.array([1, 3])], "33 %"),
    ],
)
def test_clear_differences_are_reported(ours: list[Any], theirs: list[Any], message: str) -> None:
    difference = output_difference(ours, theirs)
    assert difference is not None
    assert re.search(message, difference)


def test_equal_kinds_of_values_are_not_reported() -> None:
    words = np.array(["a", "b"], dtype=object)
    assert output_difference([None, words, [ONE], ONE > 0], [None, words, [ONE], ONE < 0]) is None
    assert output_difference([np.array([np.inf, 1.0])], [np.array([np.inf, 1.0])]) is None
