"""Models without weights: built quickly, and equal in everything but values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sardonyx.frontend.models import build_seeded


class Tied(nn.Module):
    """A table tied to the last layer, a layer used twice, weights with other references, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=0)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.memory = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)
        shared = nn.Parameter(torch.randn(2))
        self.one, self.two = shared, shared
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.memory(self.table(ids))[0])) + self.one.sum()


def test_everything_but_the_values_is_the_same() -> None:
    filled, bare = build_seeded(Tied, 0), build_seeded(Tied, 0, filled=False)
    same = [(name, each.shape, each.dtype, each.requires_grad, each.device) for name, each in filled.named_parameters()]
    assert same == [
        (name, each.shape, each.dtype, each.requires_grad, each.device) for name, each in bare.named_parameters()
    ]
    assert filled.state_dict().keys() == bare.state_dict().keys()
    assert not bare.training
    assert all(not each.any() for each in bare.parameters())


def test_tied_weights_are_kept_and_the_model_runs() -> None:
    bare = build_seeded(Tied, 0, filled=False)
    assert isinstance(bare, Tied)
    assert bare.head.weight is bare.table.weight
    assert bare.one is bare.two
    with torch.no_grad():
        bare.memory.get_parameter("weight_ih_l0").fill_(1.0)  # the layer reads its weights through its own list
        bare.memory.get_parameter("bias_ih_l0").fill_(1.0)
        assert bare.memory(torch.ones(1, 2, 4))[0].any()
        assert bare(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 7)


def test_buffers_keep_their_values() -> None:
    assert build_seeded(Tied, 0, filled=False).get_buffer("norm.running_var").eq(1).all()


def test_an_initialisation_that_reads_its_weights_is_executed() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 2.0))
            self.largest = self.weight.max().item()

    made = build_seeded(Reads, 0, filled=False)
    assert isinstance(made, Reads)
    assert made.largest == 2.0
    assert not made.weight.is_meta


def test_a_model_that_cannot_be_built_gives_the_reason_and_torch_is_unchanged() -> None:
    before = nn.Module.register_parameter

    def broken() -> nn.Module:
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        build_seeded(broken, 0, filled=False)
    assert nn.Module.register_parameter is before
