"""Which positions are left out of a comparison: padding that sees no key, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
import torch

from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine, UnattendedRows
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array
from sardonyx.verification.exclusions import hidden_positions, keyless_padding
from sardonyx.verification.output_comparison import OutputComparer

MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])  # one row padded on the left, one on the right
UNSEEING = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)  # the positions before every key
LENGTHS = frozenset((3, 5))


def moved(shape: tuple[int, ...], where: Array) -> tuple[Array, Array]:
    """Numbers, and a copy that differs at some places."""
    numbers = np.random.default_rng(0).standard_normal(shape)
    return numbers, np.where(where, numbers + 1, numbers)


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((2, 5, 7), UNSEEING[:, :, None]),  # logits
        ((2, 4, 5, 8), UNSEEING[:, None, :, None]),  # keys of the cache
        ((5, 2, 7), UNSEEING.T[:, :, None]),  # time first
        ((2, 5), UNSEEING),
        ((10, 7), UNSEEING.reshape(10, 1)),  # scores of a router
        ((10, 7), UNSEEING.T.reshape(10, 1)),
        ((4, 10), UNSEEING.reshape(1, 10)),
    ],
)
def test_padding_is_found_on_the_axes_of_an_output(shape: tuple[int, ...], where: Array) -> None:
    a, b = moved(shape, where)
    (padding,) = keyless_padding([a], [b], hidden_positions([MASK]), LENGTHS)
    assert padding is not None
    assert np.array_equal(padding.where, where)
    assert (padding.count, padding.where.size) == (2, 10)


def test_new_tokens_after_a_past_are_the_last_of_the_mask() -> None:
    mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])  # two past positions, three new ones
    where = np.array([[1, 0, 0], [0, 0, 0]], bool)[:, :, None]
    a, b = moved((2, 3, 7), where)
    (padding,) = keyless_padding([a], [b], hidden_positions([mask]), LENGTHS)
    assert padding is not None
    assert padding.count == 1


@pytest.mark.parametrize("real", [(0, 2), (1, 0)])
def test_nothing_is_left_out_if_a_real_position_depends_on_rows_without_a_key(real: tuple[int, int]) -> None:
    where = UNSEEING.copy()
    where[real] = True
    for shape, places in (((2, 5, 7), where[:, :, None]), ((10, 7), where.reshape(10, 1))):
        a, b = moved(shape, places)
        assert keyless_padding([a], [b], hidden_positions([MASK]), LENGTHS) == [None]


@pytest.mark.parametrize(
    "mask", [MASK == 0, np.where(MASK == 0, -np.inf, 0.0), np.where(MASK == 0, -1e4, 0.0)], ids=["bool", "-inf", "-1e4"]
)
def test_a_mask_may_be_true_or_low_where_it_hides_a_position(mask: Array) -> None:
    a, b = moved((2, 5, 7), UNSEEING[:, :, None])
    (padding,) = keyless_padding([a], [b], hidden_positions([mask]), LENGTHS)
    assert padding is not None
    assert np.array_equal(padding.where, UNSEEING[:, :, None])


def test_a_cache_of_a_window_holds_the_last_of_the_mask() -> None:
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    a, b = moved((2, 4, 3, 8), np.array([[0, 0, 1], [0, 0, 0]], bool)[:, None, :, None])
    (padding,) = keyless_padding([a], [b], hidden_positions([mask]), frozenset((5,)))
    assert padding is not None
    assert padding.count == 1


@pytest.mark.parametrize(("shape", "axis"), [((2, 7), 0), ((7, 2), 1), ((2, 7, 4), 0)])
def test_a_padded_item_may_be_pooled_from_rows_without_a_key(shape: tuple[int, ...], axis: int) -> None:
    first = np.zeros([2 if place == axis else 1 for place in range(len(shape))], bool)
    first.flat[0] = True
    a, b = moved(shape, first)
    padding = keyless_padding([a], [b], hidden_positions([MASK]), LENGTHS)
    comparer = OutputComparer(["scores"], Accuracy.REASSOCIATES, frozenset())
    assert comparer.compare([a], [b], lambda: None, padding=padding) == []
    assert comparer.left_out == ["1 of 2 items of 'scores' are pooled from padding that sees no key: not compared"]
    wrong = b.copy()
    np.moveaxis(wrong, axis, 0)[1].flat[0] += 0.01
    assert comparer.compare([a], [wrong], lambda: None, padding=padding)


def test_items_without_padding_are_compared() -> None:
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    a, b = moved((2, 7), np.array([[True], [True]]))
    assert keyless_padding([a], [b], hidden_positions([mask]), LENGTHS) == [None]


def test_items_of_an_output_with_positions_are_not_pooled() -> None:
    a, b = moved((2, 5, 7), np.array([True, False])[:, None, None])
    assert keyless_padding([a], [b], hidden_positions([MASK]), LENGTHS) == [None]


def test_masks_without_padding_exclude_nothing() -> None:
    assert hidden_positions([np.ones((2, 5)), np.zeros((2, 1, 5, 5)), [np.zeros((2, 5))]]) == []


def test_excluded_positions_are_counted_and_the_rest_is_compared() -> None:
    a, b = moved((2, 5, 7), UNSEEING[:, :, None])
    padding = keyless_padding([a], [b], hidden_positions([MASK]), LENGTHS)
    comparer = OutputComparer(["logits"], Accuracy.REASSOCIATES, frozenset())
    assert comparer.compare([a], [b], lambda: None, padding=padding) == []
    assert comparer.left_out == ["2 of 10 positions of 'logits' are padding that sees no key: not compared"]
    for place in ((0, 2, 0), (1, 4, 6)):  # the first real one, and padding that sees keys before it
        wrong = b.copy()
        wrong[place] += 0.01
        assert comparer.compare([a], [wrong], lambda: None, padding=padding)


Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def eager(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    lowest = torch.finfo(query.dtype).min
    return torch.softmax(query @ key.mT + torch.where(mask, 0.0, lowest), -1) @ value


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)


@pytest.mark.parametrize("attend", [eager, fused])
def test_only_rows_without_a_key_hold_other_numbers(attend: Attend) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    for mask, expected in ((MASK, UNSEEING), (np.ones_like(MASK), np.zeros_like(UNSEEING))):
        seen = causal & torch.tensor(mask, dtype=torch.bool)[:, None, None, :]
        plain = attend(query, key, value, seen)
        with UnattendedRows() as rows:
            other = attend(query, key, value, seen)
        assert np.array_equal((plain != other).all(-1).all(1).numpy(), expected)
        assert np.array_equal((plain != other).any(-1).any(1).numpy(), expected)
        assert (rows.found, rows.lengths) == ((True, {5}) if expected.any() else (False, set()))


def test_a_module_runs_again_only_if_some_row_has_no_key() -> None:
    runs: list[int] = []

    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            runs.append(len(x))
            return fused(x, x, x, mask[:, None, :].bool())

    x, masks = torch.randn(2, 5, 8), (torch.tensor(MASK), torch.zeros(2, 5, dtype=torch.int64))
    engine = TorchEngine(ModuleCall(Attention(), (x, masks[0]), {}))
    for mask, count in zip(masks, (1, 2), strict=True):
        feeds = {"x": x.numpy(), "mask": mask.numpy()}
        runs.clear()
        plain, other = engine.run(feeds)[0], engine.run_unattended(dict(feeds))
        assert (len(runs), other is None) == (count, count == 1)
        assert other is None or bool((np.asarray(other[0][0]) != plain).all())
