"""The module tree loses no count, folds only equal modules, and accepts any path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.records.module_tree import Branch, Entry, build, rows

PATHS = st.lists(st.sampled_from(["layer", "0", "1", "2", "3", "10", "attn", ""]), max_size=4).map(
    lambda parts: ".".join(filter(None, parts))
)
ENTRIES = st.lists(st.builds(Entry, PATHS, st.sampled_from(["", "Linear"]), st.tuples(st.integers(0, 2))), max_size=30)


@given(ENTRIES, st.booleans(), st.integers(0, 5) | st.none())
def test_no_node_is_lost_or_counted_twice(entries: list[Entry], fold: bool, depth: int | None) -> None:
    everything = sum(entry.numbers[0] for entry in entries)
    lines = list(rows(build(entries, 1, fold=fold), depth))
    assert lines[0].total == (everything,)
    assert sum(row.own[0] for row in lines if not row.hidden) + sum(r.total[0] for r in lines if r.hidden) == everything


@given(ENTRIES)
def test_unfolded_rows_are_the_modules_themselves(entries: list[Entry]) -> None:
    own = {row.branch.path: row.own[0] for row in rows(build(entries, 1, fold=False))}
    for path in {entry.path for entry in entries}:
        assert own[path] == sum(entry.numbers[0] for entry in entries if entry.path == path)


def _labels(root: Branch) -> list[str]:
    return [f"{row.branch.label} ×{row.branch.copies}" for row in rows(root)]


def test_equal_layers_fold_in_any_order_of_arrival() -> None:
    paths = sorted(f"encoder.layer.{i}.{part}" for i in range(12) for part in ("attn", "mlp"))  # 0, 1, 10, 11, 2, …
    root = build([Entry(path, "", (3,)) for path in paths], 1)
    assert _labels(root) == [" ×1", "encoder.layer.0…11 ×12", "attn ×1", "mlp ×1"]
    assert [row.total for row in rows(root)] == [(72,), (72,), (36,), (36,)]


def test_folds_within_folds_multiply() -> None:
    entries = [Entry(f"stage.{s}.block.{b}", "", (1,)) for s in range(3) for b in range(4)]
    root = build(entries, 1)
    assert root.total == (12,)
    assert _labels(root) == [" ×1", "stage.0…2.block.0…3 ×12"]


def test_a_gap_another_type_or_another_count_keeps_siblings_separate() -> None:
    gap = build([Entry(f"a.{i}", "", (1,)) for i in (0, 1, 3, 4)], 1)
    assert _labels(gap)[2:] == ["0…1 ×2", "3…4 ×2"]
    kinds = build([Entry("a.0", "Conv", (1,)), Entry("a.1", "Linear", (1,))], 1)
    assert _labels(kinds)[2:] == ["0 ×1", "1 ×1"]


def test_a_path_may_have_any_depth() -> None:
    deep = ".".join(["a", "b"] * 1500)
    lines = list(rows(build([Entry(deep, "x", (1,)), Entry("a.b", "y", (1,)), Entry("9" * 5000, "", (1,))], 1)))
    assert lines[0].total == (3,)


@given(ENTRIES)
def test_a_row_lists_every_module_it_represents(entries: list[Entry]) -> None:
    own: dict[str, int] = {}
    for entry in entries:
        own[entry.path] = own.get(entry.path, 0) + entry.numbers[0]
    lines = list(rows(build(entries, 1)))
    for row in lines:
        assert row.own[0] == sum(own.get(path, 0) for path in row.paths)
    paths = [path for row in lines for path in row.paths]
    assert len(paths) == len(set(paths))
    assert {path for path, number in own.items() if number} <= set(paths)
