"""Attention is recognized with its roles, and what only looks like it is rejected with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from frontend.attention.by_hand import BATCH, HEADS, LENGTH, WAYS, WIDTH, Projected, built, exported
from sardonyx.frontend.attention.recognizer import find_attentions, survey
from sardonyx.frontend.attention.roles import AttentionMatch, NotAttention, Role


def survey_of(attend: Callable[[Any, Any, Any], Any], *, example: bool = False) -> AttentionMatch | NotAttention:
    """The result for the only softmax of an attention with this `attend` method."""

    class Written(Projected):
        def attend(self, q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v)

    module, x = built(Written)
    graph = (
        torch.export.export(module, (x,), strict=False).module().graph if example else fx.symbolic_trace(module).graph
    )
    (result,) = survey(graph)
    return result


def refusal(attend: Callable[[Any, Any, Any], Any], *, example: bool = False) -> str:
    result = survey_of(attend, example=example)
    assert isinstance(result, NotAttention)
    return result.reason


def test_every_step_has_its_role() -> None:
    module, _ = built(WAYS["MaskedFill"])
    (attention,) = find_attentions(fx.symbolic_trace(module).graph)
    counted = Counter(attention.roles.values())
    once = set(Role) - {Role.SPLIT_HEADS, Role.MERGE_HEADS, Role.SCORES}
    assert {role: counted[role] for role in once} == dict.fromkeys(once, 1)
    assert counted[Role.SCORES] == 2  # the keys are transposed for the product
    assert counted[Role.SPLIT_HEADS] == 6
    assert counted[Role.MERGE_HEADS] == 2
    assert [str(attention.roles[node]) for node in attention.core] == [
        "scores",
        "scale",
        "mask",
        "softmax",
        "dropout",
        "mix",
    ]


@pytest.mark.parametrize("way", WAYS)
def test_exported_forms_have_the_same_steps(way: str) -> None:
    module, _, graph_module = exported(way)
    traced = fx.symbolic_trace(module)
    (attention,) = find_attentions(graph_module.graph)
    assert attention.read_elsewhere == ()
    assert {attention.roles[node] for node in attention.core} >= {Role.SCORES, Role.SOFTMAX, Role.MIX}
    counted = Counter(attention.roles.values())
    assert [counted[role] for role in (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V, Role.PROJECT_OUT)] == [
        1,
        1,
        1,
        1,
    ]
    for other in find_attentions(traced.graph):
        assert [type(step) for step in other.steps] == [type(step) for step in attention.steps]


def test_a_residual_stream_is_not_a_projection() -> None:
    class Unprojected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.before(x)
            return x + torch.softmax(x @ x.transpose(-2, -1), -1) @ x

    (attention,) = find_attentions(fx.symbolic_trace(Unprojected()).graph)
    assert set(attention.roles.values()) == {Role.SCORES, Role.SOFTMAX, Role.MIX}


def test_returned_weights_are_noted() -> None:
    class Returning(Projected):
        def attend(self, q: Any, k: Any, v: Any) -> Any:
            self.weights = torch.softmax(q @ k.transpose(-2, -1), -1)
            return self.weights @ v

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.weights

    (attention,) = find_attentions(fx.symbolic_trace(built(Returning)[0]).graph)
    assert attention.read_elsewhere == (attention.softmax,)
    assert Role.PROJECT_Q in attention.roles.values()


def test_a_gate_is_not_attention() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=-1))
    (attention,) = survey(fx.symbolic_trace(module).graph)
    assert isinstance(attention, NotAttention)
    assert "`0`, not from a product" in attention.reason


def _turned(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(k @ q.transpose(-2, -1), -1).transpose(-2, -1) @ v


def _rows_merged(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-2, -1)).reshape(BATCH, HEADS, LENGTH * LENGTH, 1).reshape(BATCH, HEADS, LENGTH, LENGTH)
    return torch.softmax(scores, -1) @ v


def _filled_with_data(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(torch.where(scores > 0, scores, scores * 2), -1) @ v


def _weights_only(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1), -1).sum(-1, keepdim=True) * v


def test_near_misses() -> None:
    assert "over axis 2, not over the keys" in refusal(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), 2) @ v)
    assert "the weights go through `transpose`" in refusal(_turned)
    assert "right side" in refusal(lambda q, k, v: v.transpose(-2, -1) @ torch.softmax(q @ k.transpose(-2, -1), -1))
    assert "regroups rows or columns" in refusal(_rows_merged, example=True)
    assert "example inputs are needed to decide" in refusal(_rows_merged)
    assert "filled with a value that is not a constant" in refusal(_filled_with_data)
    assert "not multiplied with values" in refusal(_weights_only)
    assert "the weights go through `mul`" in refusal(lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 2) @ v)
    assert "come from `relu`" in refusal(lambda q, k, v: torch.softmax(F.relu(q @ k.mT), -1) @ v)
    assert "does not multiply values" in refusal(
        lambda q, k, v: torch.einsum("bhij,bhid->bhjd", torch.softmax(q @ k.mT, -1), v)
    )
