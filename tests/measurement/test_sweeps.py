"""A sweep is every combination once, together with the fixed sizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import UsageError
from sardonyx.verbs.bench.bench import MAX_COMBINATIONS, points

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from("abc"), SIZES), st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9)))
def test_every_combination_is_there_once(sweep: dict[str, list[int]], fixed: dict[str, int]) -> None:
    combinations = points(fixed, sweep)
    assert len(combinations) == math.prod(len(set(each)) for each in sweep.values())
    assert len({tuple(sorted(each.items())) for each in combinations}) == len(combinations)
    for each in combinations:
        assert each.keys() == fixed.keys() | sweep.keys()
        assert all(each[dim] == size for dim, size in fixed.items())
        assert all(each[dim] in sizes for dim, sizes in sweep.items())


def test_the_last_dim_changes_fastest() -> None:
    assert points(None, {"a": [2, 1], "b": [3, 4]}) == [
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
    ]
    assert points(None, None) == [{}]


@pytest.mark.parametrize(
    ("fixed", "sweep", "message"),
    [
        ({"a": 1}, {"a": [1, 2]}, "swept too"),
        ({"a": 0}, {}, "a cannot be 0"),
        ({}, {"a": [1, -1]}, "a cannot be -1"),
        ({}, {"a": []}, "no sizes"),
        ({}, {"a": range(1, 40), "b": range(1, 40)}, f"{39 * 39} combinations"),
    ],
)
def test_invalid_arguments_are_refused(fixed: dict[str, int], sweep: dict[str, list[int]], message: str) -> None:
    assert MAX_COMBINATIONS < 39 * 39
    with pytest.raises(UsageError, match=message):
        points(fixed, sweep)
