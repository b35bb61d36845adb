"""An axis is dynamic exactly if the module runs with other sizes; a static one has a reason."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sardonyx.frontend.inputs.dynamic import Dynamic, find_dynamic
from sardonyx.frontend.inputs.facts import Facts


def dynamic_dims(module: nn.Module, leaves: dict[str, Tensor], longest: int | None = None) -> Dynamic:
    def run(tensors: Sequence[Tensor]) -> Any:
        return module(*tensors)

    return find_dynamic(run, leaves, longest=longest)


class Text(nn.Module):
    """Tokens with learned positions and a mask; two rows of the table are reserved."""

    def __init__(self, positions: int = 20) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 6), nn.Embedding(positions, 6)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]) + 2
        return (self.tokens(ids) + self.places(places)) * mask[..., None]


class Square(nn.Module):
    """Accepts only square images."""

    def forward(self, image: Tensor) -> Tensor:
        return image @ image.transpose(2, 3) + image.transpose(2, 3)


class Continued(nn.Module):
    """Has a past, new tokens, and a mask over both."""

    def forward(self, ids: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        new = ids[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[3]).float()
        both = torch.cat([key + value, new], 2) + torch.zeros(4, 1, 8)
        return both * mask[:, None, :, None]


TOKENS = {"ids": torch.randint(0, 30, (2, 11)), "mask": torch.ones(2, 11, dtype=torch.int64)}


def test_batch_and_sequence_are_found_with_the_true_limit() -> None:
    dynamic = dynamic_dims(Text(), TOKENS, longest=20)
    assert dynamic.axes == {name: {0: "batch", 1: "sequence"} for name in TOKENS}
    assert dynamic.notes == ("sequence at most 18",)


def test_no_limit_is_reported_if_there_is_none() -> None:
    assert dynamic_dims(Text(90), TOKENS, longest=20).notes == ()


class Two(nn.Module):
    """Reads two sequences; the second has at most 20 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(20, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first.sum(1) + second.sum(1) + self.places(torch.arange(second.shape[1])).sum()


@pytest.mark.parametrize(
    ("name", "dim"),
    [("decoder_input_ids", "decoder_sequence"), ("query.ids", "query_sequence"), ("ids", "ids_sequence")],
)
def test_a_second_sequence_has_its_own_name_and_limit(name: str, dim: str) -> None:
    dynamic = dynamic_dims(Two(), {"a": torch.ones(2, 5).long(), name: torch.ones(2, 7).long()}, longest=20)
    assert dynamic.axes == {"a": {0: "batch", 1: "sequence"}, name: {0: "batch", 1: dim}}
    assert dynamic.notes == (f"{dim} at most 20",)


def test_sizes_are_not_a_sequence() -> None:
    leaves = {"ids": torch.ones(2, 5).long(), "image_sizes": torch.ones(2, 2).long()}
    assert dynamic_dims(Two(), leaves).axes["image_sizes"] == {0: "batch", 1: "image_sizes_1"}


def test_positions_are_the_last_axis_of_several_texts() -> None:
    class Sum(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return (ids.view(-1, ids.shape[2]) * mask.view(-1, ids.shape[2])).sum(1).view(ids.shape[:2])

    axes = dynamic_dims(Sum(), {name: torch.ones(2, 3, 5).long() for name in ("ids", "mask")}).axes
    assert axes["ids"] == axes["mask"] == {0: "batch", 1: "ids_1", 2: "sequence"}


def test_empty_and_scalar_inputs_stay_as_they_are() -> None:
    leaves = {"a": torch.ones(2, 5).long(), "features": torch.ones(2, 5, 0), "scale": torch.tensor(2.0)}

    class Plain(nn.Module):
        def forward(self, a: Tensor, features: Tensor, scale: Tensor) -> Tensor:
            return torch.cat([a[..., None] * scale, features], 2)

    assert dynamic_dims(Plain(), leaves).axes == {name: {0: "batch", 1: "sequence"} for name in ("a", "features")}
    assert dynamic_dims(nn.ReLU(), {"x": torch.tensor(2.0)}).axes == {}


def test_height_and_width_are_independent_if_the_module_allows_it() -> None:
    dynamic = dynamic_dims(nn.Conv2d(3, 4, 3), {"x": torch.ones(2, 3, 8, 8)})
    assert dynamic.axes == {"x": {0: "batch", 2: "x_2", 3: "x_3"}}
    assert len(dynamic.notes) == 1
    assert dynamic.notes[0].startswith("x:1 stays 3: RuntimeError")


def test_height_and_width_share_a_name_if_they_must_be_equal() -> None:
    axes = dynamic_dims(Square(), {"x": torch.ones(2, 3, 8, 8)}).axes["x"]
    assert axes[2] == axes[3] == "x_2"


def test_rounding_in_a_pooling_layer_does_not_make_a_size_dynamic() -> None:
    module = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 16, 2))
    dynamic = dynamic_dims(module, {"x": torch.ones(2, 3, 8, 8)})
    assert dynamic.axes == {"x": {0: "batch"}}
    assert any(note.startswith("x:2 stays 8") for note in dynamic.notes)


def test_a_mask_over_past_and_new_tokens_grows_with_both() -> None:
    cache = {f"past.0.{part}": torch.randn(2, 4, 3, 8) for part in ("key", "value")}
    leaves = {"ids": torch.ones(2, 5).long(), **cache, "mask": torch.ones(2, 8).long()}
    axes = dynamic_dims(Continued(), leaves).axes
    assert axes["ids"] == {0: "batch", 1: "sequence"}
    assert axes["past.0.key"] == axes["past.0.value"] == {0: "batch", 2: "past_sequence"}
    assert axes["mask"] == {0: "batch", 1: "past_sequence + sequence"}


def test_a_size_of_one_stays_static() -> None:
    dynamic = dynamic_dims(nn.Linear(4, 2), {"x": torch.ones(1, 4)})
    assert dynamic.axes == {}
    assert dynamic.notes[0].startswith("x:0 stays 1: a size of 1")


@pytest.mark.parametrize(("setting", "limit"), [("max_position_embeddings", 77), ("n_positions", 9)])
def test_the_limit_comes_from_the_config_by_its_meaning(setting: str, limit: int) -> None:
    class Configured(nn.Module):
        config = SimpleNamespace(**{setting: limit})

    assert Facts(Configured()).count("positions") == limit
