"""Places: module paths are grouped, and counts add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.reporting.module_rows import Place, places, where


@pytest.mark.parametrize(
    ("paths", "label", "path"),
    [
        (["a.layer.0.b", "a.layer.1.b", "a.layer.2.b"], "a.layer.0…2.b", "a.layer"),
        (["a.0", "a.1"], "a.0,1", "a"),
        (["a.0", "a.2", "a.3", "a.4", "a.9"], "a.0,2…4,9", "a"),
        ([f"a.{at}" for at in range(0, 24, 2)], "a.0,2,…,22", "a"),
        (["a.3.b.1", "a.3.b.2", "a.3.b.3"], "a.3.b.1…3", "a.3.b"),
        (["a.7.b"], "a.7.b", "a.7.b"),
        ([""], "(model)", ""),
        (["0", "1", "2"], "0…2", ""),
    ],
)
def test_paths_that_differ_in_numbers_are_one_place(paths: list[str], label: str, path: str) -> None:
    assert places(dict.fromkeys(paths, 1)) == [Place(label, path, len(paths))]


def test_other_names_are_other_places_sorted_by_count() -> None:
    assert [each.label for each in places({"a.x": 1, "b.x": 3, "a.01": 2})] == ["b.x", "a.01", "a.x"]
    assert where({"a": 1, "b": 2, "c": 3, "d": 4}) == "d, c and 2 other modules"


@given(st.dictionaries(st.text("ab01.\n²", max_size=9), st.integers(1, 9)))
def test_counts_add_up_and_a_link_goes_to_the_common_ancestor(modules: dict[str, int]) -> None:
    links = places(modules)
    assert sum(each.count for each in links) == sum(modules.values())
    for each in links:
        assert any(not each.path or f"{path}.".startswith(f"{each.path}.") for path in modules)
    assert "\n" not in where(modules)
