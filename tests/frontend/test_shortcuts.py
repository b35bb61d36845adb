"""What is left out of torch's export does not change the graph."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn

from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import Call


class Mixed(nn.Module):
    """Operators on several types, for which torch inserts casts, before and after operators on one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        scaled = self.norm(x) * count + x.double().sum()
        chosen = torch.where(x > count, scaled, count)
        return (chosen / (count > 1)).clamp(max=3) + chosen.shape[0]


@pytest.mark.slow
def test_the_graph_is_the_same_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes() -> list[object]:
        call = Call(Mixed().eval(), (torch.randn(3, 4), torch.arange(1, 5)), {})
        model, _ = traced.export(call, "dynamo", {"x": {0: "batch"}}, None, traced.TagStyle())
        return [
            (node.op_type, [value and value.name for value in node.inputs], str(node.outputs), str(node.attributes))
            for node in model.graph
        ]

    short = nodes()
    monkeypatch.setattr(traced, "shortcuts", lambda **_: contextlib.nullcontext())
    assert short == nodes()
    assert sum(node[0] == "Cast" for node in short if isinstance(node, tuple)) > 3
