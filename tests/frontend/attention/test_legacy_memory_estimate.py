"""The legacy estimate reproduces the published figures; small graphs show each of its rules."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import zoo
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.capture.tracer import trace
from sardonyx.frontend.attention.legacy_memory_estimate import LegacyMemoryEstimate, legacy_memory_estimate
from sardonyx.frontend.attention.roles import Decomposition, attach

MIB = 1 << 20


def _vit() -> nn.Module:
    with torch.device("meta"):
        return zoo.torchvision().models.vit_b_16(weights=None).eval()


def _estimate(model: nn.Module, *shape: int) -> LegacyMemoryEstimate:
    return legacy_memory_estimate(fx.symbolic_trace(model), (torch.empty(shape, device="meta"),))


def _as_printed(estimate: LegacyMemoryEstimate) -> tuple[str, str]:
    return f"{estimate.peak_bytes / MIB:.2f} MB", f"{100 * estimate.reduction:.1f} %"


def test_the_standard_model_has_the_published_figures() -> None:
    estimate = _estimate(_vit(), 1, 3, 224, 224)
    assert _as_printed(estimate) == ("251.95 MB", "29.1 %")
    assert (estimate.peak_bytes, estimate.never_freed_bytes, estimate.weight_bytes) == (264189856, 372518768, 232115104)


def test_the_decomposed_model_has_the_published_figures() -> None:
    estimate = legacy_memory_estimate(trace(_vit()), (torch.empty(1, 3, 224, 224, device="meta"),))
    assert _as_printed(estimate) == ("251.37 MB", "33.2 %")
    assert (estimate.peak_bytes, estimate.never_freed_bytes) == (263584672, 394872704)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act, self.norm = nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.linear(x)  # 4·16 = 64 of output, half of it workspace, 4·(8·16 + 16) = 576 of weights
        return torch.relu(self.act(wide) + wide) * 2


def test_a_small_graph_by_hand() -> None:
    """linear 64 + 32, act 64 + 64; add and mul depend only on their modules; relu is not counted."""
    with torch.device("meta"):
        estimate = _estimate(Small(), 1, 8)
    # ready at first: linear, mul (it reads a function); then act; then add
    # linear: 64 + 32 | mul: 64 + 64 | act: 64 + 64 + 64 (mul is released afterwards) | add: 64 + 64 + 64
    assert estimate == LegacyMemoryEstimate(peak_bytes=576 + 192, never_freed_bytes=576 + 4 * 64, weight_bytes=576)
    assert estimate.reduction == pytest.approx(1 - 768 / 832)


def test_a_graph_that_export_made_is_refused() -> None:
    graph_module = fx.symbolic_trace(nn.ReLU())
    attach(graph_module, Decomposition("torch-export", "", (), {}))
    for other in (graph_module, nn.ReLU()):
        with pytest.raises(ModelError, match="symbolic trace"):
            legacy_memory_estimate(other, (torch.empty(2),))  # pyright: ignore[reportArgumentType]


def test_the_graph_is_unchanged() -> None:
    graph_module = fx.symbolic_trace(Small())
    before = [dict(node.meta) for node in graph_module.graph.nodes]
    legacy_memory_estimate(graph_module, (torch.ones(1, 8),))
    assert [dict(node.meta) for node in graph_module.graph.nodes] == before
