"""Calls of a multi-head attention that random options do not reach, and calls that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frontend.attention import comparing
from frontend.attention.comparing import random_tensor, random_weights
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompose import trace
from sardonyx.frontend.attention.roles import decomposition_of


class Functional(nn.Module):
    """A call of the function with weights of the model."""

    def __init__(self, separate: bool, training: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6 if separate else None, vdim=5 if separate else None)
        self.separate, self.active = separate, training

    def forward(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
        own = self.attention
        return F.multi_head_attention_forward(
            query,
            key,
            value,
            8,
            2,
            own.in_proj_weight,
            own.in_proj_bias,
            own.bias_k,
            own.bias_v,
            True,
            0.3,
            own.out_proj.weight,
            own.out_proj.bias,
            training=self.active,
            attn_mask=mask,
            use_separate_proj_weight=self.separate,
            q_proj_weight=own.q_proj_weight,
            k_proj_weight=own.k_proj_weight,
            v_proj_weight=own.v_proj_weight,
        )


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_function(separate: bool, training: bool) -> None:
    model = random_weights(Functional(separate, training))
    traced = trace(model)
    decomposition = decomposition_of(traced)
    assert decomposition is not None
    assert [a.written_as for a in decomposition.attentions] == ["multi_head_attention_forward"]
    sources = (
        random_tensor(4, 3, 8),
        random_tensor(5, 3, 6 if separate else 8),
        random_tensor(5, 3, 5 if separate else 8),
    )
    inputs = dict(zip(("query", "key", "value"), sources, strict=True)) | {"mask": random_tensor(4, 5) > 0.7}
    comparing.agree(comparing.run(traced, inputs, grad=True), comparing.run(model, inputs, grad=True))


def test_the_same_graph_accepts_inputs_with_and_without_a_batch() -> None:
    model = random_weights(nn.MultiheadAttention(8, 2)).eval()
    traced = trace(model)
    for shape in ((5, 8), (5, 1, 8), (5, 3, 8), (2, 3, 8)):
        inputs: dict[str, torch.Tensor] = dict.fromkeys(("query", "key", "value"), random_tensor(*shape))
        comparing.agree(comparing.run(traced, inputs, grad=True), comparing.run(model, inputs, grad=True))


def test_a_row_without_keys_is_nan_with_weights_and_zero_without() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)

        def forward(self, x: Any, mask: Any) -> Any:
            with_weights, weights = self.attention(x, x, x, attn_mask=mask)
            return with_weights, weights, self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    shown, weights, hidden = trace(random_weights(Both()))(random_tensor(2, 4, 8), mask)
    assert shown[:, 1].isnan().all()
    assert weights[:, 1].isnan().all()
    assert (hidden[:, 1] == 0).all()
    assert shown[:, 0].isfinite().all()


def test_a_subclass_that_calls_its_parent() -> None:
    class Halved(nn.MultiheadAttention):
        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return super().forward(query / 2, key, value, need_weights=False)[0]

    model = random_weights(nn.Sequential(Once(Halved(8, 2)))).eval()
    traced = trace(model)
    inputs = {"input": random_tensor(5, 3, 8)}
    comparing.agree(comparing.run(traced, inputs, grad=True), comparing.run(model, inputs, grad=True))


class Once(nn.Module):
    """Self-attention as a layer of one argument."""

    def __init__(self, attention: nn.MultiheadAttention, **options: Any) -> None:
        super().__init__()
        self.attention, self.options = attention, options

    def forward(self, x: Any) -> Any:
        result = self.attention(x, x, x, **self.options)
        return result[0] if isinstance(result, tuple) else result


def test_parametrized_weights_are_traced_through() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight * 2

    model = random_weights(Once(nn.MultiheadAttention(8, 2))).eval()
    torch.nn.utils.parametrize.register_parametrization(model.attention, "in_proj_weight", Doubled())
    inputs = {"x": random_tensor(5, 3, 8)}
    comparing.agree(comparing.run(trace(model), inputs, grad=True), comparing.run(model, inputs, grad=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"is_causal": True, "need_weights": False}, "attention: is_causal=True .* attn_mask"),
        ({"attn_mask": torch.zeros(1, 1, 5, 5)}, "attention: attn_mask has 4 axes"),
        ({"key_padding_mask": torch.zeros(1, 1, 5, dtype=torch.bool)}, "attention: key_padding_mask has 3 axes"),
        ({"attn_mask": torch.zeros(5, 5, dtype=torch.int64)}, "attention: attn_mask is torch.int64"),
    ],
)
def test_invalid_calls_are_refused_with_module_and_option(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        trace(Once(nn.MultiheadAttention(8, 2), **options))


@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": torch.zeros(1, 5, dtype=torch.bool)},  # would broadcast
        {"attn_mask": torch.zeros(5, 4, dtype=torch.bool)},
        {"attn_mask": torch.zeros(3, 5, 5, dtype=torch.bool)},  # one for each batch item, but not for each head
        {"attn_mask": torch.zeros(5, 5, dtype=torch.int64)},
        {"key_padding_mask": torch.zeros(1, 5, dtype=torch.bool)},
        {"key_padding_mask": torch.zeros(5, dtype=torch.bool)},
    ],
)
def test_what_torch_refuses_at_run_time_is_refused_at_run_time(masks: dict[str, torch.Tensor]) -> None:
    model = nn.MultiheadAttention(8, 2)
    x = random_tensor(5, 3, 8)
    with pytest.raises((RuntimeError, AssertionError)):
        model(x, x, x, **masks)
    with pytest.raises(RuntimeError):
        trace(model)(x, x, x, **masks)


def test_a_function_of_constants_alone_is_computed_while_tracing() -> None:
    table, hidden = random_tensor(4, 1, 8), torch.tensor([[False, False, True, False]])
    weights = [random_tensor(24, 8), random_tensor(24), random_tensor(8, 8), random_tensor(8)]

    class Added(nn.Module):
        def forward(self, x: Any) -> Any:
            packed, bias, out, out_bias = weights
            known, _ = F.multi_head_attention_forward(
                *(table, table, table, 8, 2, packed, bias, None, None, False, 0.0, out, out_bias),
                training=False,
                key_padding_mask=hidden,
            )
            return x + known

    x = random_tensor(4, 1, 8)
    comparing.close(trace(Added())(x), Added()(x))
