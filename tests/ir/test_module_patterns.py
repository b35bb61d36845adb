"""Patterns for modules: which modules they match, and the error if they match none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import UsageError
from sardonyx.ir.module_borders import find_module, find_modules
from sardonyx.records.provenance import Hierarchy, ModuleTable, Reading

CLASSES = {
    "": "bert.BertModel",
    "encoder": "bert.BertEncoder",
    "encoder.layer": "torch.nn.modules.container.ModuleList",
    **{f"encoder.layer.{i}": "bert.BertLayer" for i in range(2)},
    **{f"encoder.layer.{i}.attn": "bert.Attention" for i in range(2)},
    **{f"encoder.layer.{i}.attn.query": "torch.nn.modules.linear.Linear" for i in range(2)},
    "pooler": "bert.BertPooler",
}
HIERARCHY = Hierarchy([Reading(frozenset(), CLASSES)])
OWNERS = [path for path in CLASSES if path.endswith("query")] + ["pooler"]  # containers and attention own nothing


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        ("encoder.layer.0", ["encoder.layer.0"]),
        ("encoder.layer", ["encoder.layer"]),
        ("encoder.layer.*", ["encoder.layer.0", "encoder.layer.1"]),
        ("encoder.*", ["encoder.layer"]),
        ("**.attn", ["encoder.layer.0.attn", "encoder.layer.1.attn"]),
        ("**.pooler", ["pooler"]),
        ("encoder.layer.?", ["encoder.layer.0", "encoder.layer.1"]),
        ("/BertModel/BertEncoder/BertLayer.0", ["encoder.layer.0"]),
        ("BertModel/BertEncoder", ["encoder"]),
        ("/BertModel", [""]),
        ("/", [""]),
        ("", [""]),
        ("/BertModel/BertEncoder/BertLayer.*", ["encoder.layer.0", "encoder.layer.1"]),
        ("/BertModel/BertEncoder/*/Attention", ["encoder.layer.0.attn", "encoder.layer.1.attn"]),
        ("/**/BertLayer.1", ["encoder.layer.1"]),
        ("encoder.layer.0.attn.query", ["encoder.layer.0.attn.query"]),
    ],
)
def test_a_name_finds_its_modules(pattern: str, modules: list[str]) -> None:
    assert find_modules(HIERARCHY, OWNERS, pattern) == modules


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("encoder.layr.0", "encoder.layer.0"),
        ("layer.1", "encoder.layer.1"),
        ("/BertModel/BertEncodr", "/BertModel/BertEncoder"),
        ("encoder.layer.0.*.*.*", "encoder.layer.0"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(pattern: str, near: str) -> None:
    with pytest.raises(UsageError, match="there is no module") as caught:
        find_modules(HIERARCHY, OWNERS, pattern)
    assert near in (caught.value.hint or "")


def test_a_name_without_similar_ones_refers_to_inspect() -> None:
    with pytest.raises(UsageError) as caught:
        find_modules(HIERARCHY, OWNERS, "zzz")
    assert "inspect" in (caught.value.hint or "")


def test_several_where_one_is_needed_are_listed() -> None:
    assert find_module(HIERARCHY, OWNERS, "encoder.layer.1") == "encoder.layer.1"
    with pytest.raises(UsageError, match="names 2 modules") as caught:
        find_module(HIERARCHY, OWNERS, "encoder.layer.*")
    assert caught.value.hint == "one of encoder.layer.0, encoder.layer.1"


@given(st.lists(st.text("ab*?[(.", min_size=1, max_size=5).map(lambda text: text.strip(".") or "a"), min_size=1))
def test_a_name_in_full_is_never_read_as_a_glob(paths: list[str]) -> None:
    for path in paths:
        assert find_modules(Hierarchy(), paths, path) == [path]


def test_call_numbers_are_not_part_of_a_name() -> None:
    assert find_modules(Hierarchy(), ["twice.lin", "twice@1.lin"], "twice.*") == ["twice.lin"]


def test_a_module_is_found_by_all_its_names() -> None:
    table = ModuleTable.of({"a": "m.A", "b": "m.A"}, {"b": "a", "c": "a"}, include_torch_nn=False)
    assert find_modules(Hierarchy((), table), ["b"], "c") == ["b"]
    assert find_modules(Hierarchy((), table), ["a"], "b") == ["a"]


def test_torch_modules_are_found_by_their_class() -> None:
    assert find_modules(HIERARCHY, OWNERS, "/BertModel/**/Linear") == [
        f"encoder.layer.{index}.attn.query" for index in range(2)
    ]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("*.attn", "'**.attn' names encoder.layer.0.attn and 1 more"),
        ("*.pooler", "'**.pooler' names pooler"),
        ("/*/BertLayer.*", "'/**/BertLayer.*' names /BertModel/BertEncoder/BertLayer.0 and 1 more"),
    ],
)
def test_a_glob_of_another_depth_is_explained(pattern: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        find_modules(HIERARCHY, OWNERS, pattern)
    assert error.value.hint == f"* matches one part of a name, ** any number of them: {hint}"
