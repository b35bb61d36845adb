"""A module computes in double precision without a second copy of its weights, and is restored."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine, widened_in_turn


class Tied(nn.Module):
    """A weight of two modules, a buffer, and a parameter of the module itself."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.shift = nn.Parameter(torch.randn(8))
        self.register_buffer("scale", torch.rand(8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids) * self.scale + self.shift)


class Borrowing(nn.Module):
    """Reads the weight of a module that it never calls, as nn.MultiheadAttention does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.inner.weight, self.inner.bias)


def test_shares_the_weights_and_widens_one_module_at_a_time() -> None:
    module, ids = Tied().eval(), torch.arange(11)
    precise = widened_in_turn(module)
    assert {id(each) for each in precise.parameters()} == {id(each) for each in module.parameters()}
    with torch.no_grad():
        answer, expected = precise(ids), Tied().double().eval()(ids)
    assert answer.dtype is torch.float64
    assert torch.equal(answer, expected)
    assert all(each.dtype is torch.float32 for each in (*precise.parameters(), *precise.buffers()))
    with torch.no_grad():
        assert module(ids).dtype is torch.float32


def test_a_module_that_reads_weights_of_another_is_widened_as_a_whole() -> None:
    module, x = Borrowing().eval(), torch.randn(3, 8)
    answers = TorchEngine(ModuleCall(module, (x,), {})).run_in_double({"x": x.numpy()})
    assert answers is not None
    (answer,) = answers
    assert isinstance(answer, np.ndarray)
    with torch.no_grad():
        expected = Borrowing().double().eval()(x.double())
    assert (torch.from_numpy(answer) == expected).all()
