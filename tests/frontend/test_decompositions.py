"""Programs decomposed node by node equal torch's own decomposition, and compute what the module computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sardonyx
from sardonyx.frontend.tracing import decompositions, dynamo
from sardonyx.frontend.tracing.rehearsal import StateMode


class Module(nn.Module):
    """A linear layer, and a function of its input and its output."""

    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.body = nn.Linear(8, 8), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, self.layer(x))


def composite(x: Tensor, y: Tensor) -> Tensor:
    """Operators that are views, casts or no-ops depending on their operands; one of them without gradients."""
    with torch.no_grad():
        angles = (x.float() * 2).cos().to(y.dtype)
    return y.transpose(0, 1).reshape(-1).unsqueeze(0).sum() + (y.contiguous() * angles)


def written_in_place(x: Tensor, y: Tensor) -> Tensor:
    """In-place writes without aliases: later uses have the new values, earlier uses the old ones."""
    before = y * 2
    y += 1
    y.mul_(x)
    rectified = nn.functional.relu(y, inplace=True)
    return y + rectified + before


def made_of_ranges(x: Tensor, y: Tensor) -> Tensor:
    """An operator that is decomposed into others, some of which have no operand and are decomposed again."""
    return y + nn.functional.interpolate(x.reshape(1, -1, 8), size=16, mode="linear").reshape(-1, 16)[:, ::2]


def written_through_a_view(x: Tensor, y: Tensor) -> Tensor:
    seen = y.view(-1)
    y += x
    return seen.sum() + y


def narrowed_by_writing(x: Tensor, y: Tensor) -> Tensor:
    """The sum has a wider type than the tensor it is written to."""
    half = y.half() * 1
    half += x.double()
    return half.float() + x


def _leave(_program: torch.export.ExportedProgram) -> None:
    """Let torch decompose it."""


def _modes(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, state: StateMode = "io"
) -> tuple[list[str], list[Counter[str]]]:
    """Export node by node and with torch's decomposition. Returns which was used first, and the operators of each."""
    used: list[str] = []
    run = decompositions._Rewriter.run

    def noted(self: decompositions._Rewriter) -> object:
        graph = run(self)
        used.append("local")
        return graph

    monkeypatch.setattr(decompositions._Rewriter, "run", noted)
    operators: list[Counter[str]] = []
    for way in (decompositions.decompose_locally, _leave):
        monkeypatch.setattr(dynamo, "decompose_locally", way)
        made = sardonyx.export(module, torch.randn(3, 8), dynamic="auto", state=state)
        assert made.verdict is not None
        assert made.verdict.passed
        assert made.model is not None
        operators.append(Counter(node.op_type for node in made.model.graph.all_nodes()))
    return used, operators


@pytest.mark.parametrize("body", [composite, written_in_place, made_of_ranges])
def test_the_graph_equals_torchs_own(body: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    used, (local, whole) = _modes(monkeypatch, Module(body))
    assert used == ["local"]
    assert local == whole


@pytest.mark.parametrize("body", [written_through_a_view, narrowed_by_writing])
def test_visible_writes_are_left_to_torch(
    body: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    used, (local, whole) = _modes(monkeypatch, Module(body))
    assert used == []
    assert local == whole


def test_a_buffer_that_is_written_to_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x + 1

    used, (local, whole) = _modes(monkeypatch, Counting(), state="fixed")
    assert used == []
    assert local == whole


@pytest.mark.parametrize(("shape", "masked"), [((5, 8), False), ((2, 3, 2, 5, 8), True)])
def test_attention_of_any_rank_is_exported_and_verified(shape: tuple[int, ...], masked: bool) -> None:
    """Torch's exporter supports only four dimensions."""

    def attend(x: Tensor, y: Tensor) -> Tensor:
        mask = torch.ones(5, 5).tril() > 0 if masked else None
        return nn.functional.scaled_dot_product_attention(x, y, y + 1, attn_mask=mask)

    sardonyx.export(Module(attend), torch.randn(shape))  # raises if the graph computes anything else


class Routed(nn.Module):
    """Splits its rows by counts that are data, once for each router."""

    def __init__(self) -> None:
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(4, 2, bias=False) for _ in range(2))
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for router in self.routers:
            choice = router(x).argmax(-1)
            counts = torch.stack([(choice == expert).sum() for expert in range(2)]).tolist()
            parts = x.split(counts)
            x = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return x


def test_sizes_read_from_data_are_distinct() -> None:
    """Two `item` calls on tensors of one shape are two sizes."""
    torch.manual_seed(0)
    module = Routed().eval()
    x = torch.randn(9, 4)
    counts = [int(router(x).argmax(-1).sum()) for router in module.routers]
    assert counts[0] != counts[1]
    sardonyx.export(module, x, exporter="dynamo")
