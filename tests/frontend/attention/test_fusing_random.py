"""Random attentions, torch's own and written by hand: after fusion, results and gradients are equal."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from frontend.attention import comparing, random_modules
from frontend.attention.test_fusing import calls, softmaxes
from sardonyx.frontend.attention.decompose import trace
from sardonyx.frontend.attention.fuse import fuse_attention, fusion_of
from sardonyx.frontend.attention.roles import decomposition_of


def _agrees(model: nn.Module, fused: nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype) -> None:
    truth = None
    if dtype == torch.bfloat16:
        doubled = {k: v.double() if v is not None and v.is_floating_point() else v for k, v in inputs.items()}
        truth = comparing.run(copy.deepcopy(model).double(), doubled, grad=True)
    comparing.agree(comparing.run(fused, inputs, grad=True), comparing.run(model, inputs, grad=True), truth)


@settings(max_examples=60)
@given(random_modules.multiheads())
def test_multihead_attention_is_decomposed_and_fused_back(case: random_modules.Multihead) -> None:
    case = replace(case, dropout=0.0)
    model = random_modules.Attend(case)
    traced = trace(model)
    fused = fuse_attention(traced)
    assert (len(calls(fused)), softmaxes(fused)) == ((0, 1) if case.need_weights else (1, 0))
    fusion, decomposition = fusion_of(fused), decomposition_of(fused)
    assert fusion is not None
    assert decomposition is not None
    assert [each.reason[:15] for each in fusion.refused] == ["its weights are"] * case.need_weights
    assert set(decomposition.modules) == {node.name for node in fused.graph.nodes}
    together = 3 if case.keys is None else 0  # projections of one input share one weight parameter
    assert [len(each) for each in fusion.packed] == [together] * bool(together)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        _agrees(model, fused, random_modules.inputs_of(case), case.dtype)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@settings(max_examples=60)
@given(random_modules.sdpas())
def test_sdpa_is_decomposed_and_fused_back(case: random_modules.Sdpa) -> None:
    case = replace(case, dropout=0.0)
    model = random_modules.Sdpas(case)
    fused = fuse_attention(trace(model))
    (call,) = calls(fused)
    assert softmaxes(fused) == 0
    assert call.kwargs.get("is_causal", False) == (case.mask == "causal")
    assert call.kwargs.get("enable_gqa", False) == (case.groups is not None)
    assert call.kwargs.get("scale") == case.scale
    _agrees(model, fused, random_modules.sdpa_inputs(case), case.dtype)


@dataclass(frozen=True)
class Written:
    """Options of an attention written by hand."""

    product: str  # "matmul", "einsum", "bmm"
    scales: tuple[str, ...]  # the places where the scores are scaled
    masks: tuple[str, ...]  # in this order
    scaled_late: bool
    cast: str
    empty_row: bool
    seed: int


@st.composite
def written(draw: st.DrawFn) -> Written:
    """All combinations of options."""
    scales = st.sampled_from(("mul", "div", "query", "key", "tensor"))
    masks = st.sampled_from(("bias", "minus", "fill", "where", "low", "low where"))
    return Written(
        product=draw(st.sampled_from(("matmul", "einsum", "bmm"))),
        scales=tuple(draw(st.lists(scales, max_size=2, unique=True))),
        masks=tuple(draw(st.lists(masks, max_size=2, unique=True))),
        scaled_late=draw(st.booleans()),
        cast=draw(st.sampled_from(("none", "softmax", "float"))),
        empty_row=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
    )


class ByHand(nn.Module):
    """A model that is the random attention, over (2, 3, 5, 4)."""

    gone: torch.Tensor

    def __init__(self, case: Written) -> None:
        super().__init__()
        self.case = case
        generator = torch.Generator().manual_seed(case.seed)
        self.bias = nn.Parameter(torch.randn(3, 5, 5, generator=generator))
        self.heads = nn.Parameter(torch.rand(3, 1, 1, generator=generator) + 0.5)
        gone = torch.rand(2, 1, 5, 5, generator=generator) < 0.4
        gone[..., 0] = False
        if case.empty_row and set(case.masks) <= {"low", "low where", "bias"}:
            gone[0, :, 0] = True
        self.register_buffer("gone", gone)

    def forward(self, q, k, v):
        case, flat = self.case, self.case.product == "bmm"
        q = q * 0.6 if "query" in case.scales else q
        k = 0.7 * k if "key" in case.scales else k
        if case.product == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k)
        elif flat:
            scores = torch.bmm(q.reshape(6, 5, 4), k.reshape(6, 5, 4).transpose(1, 2)).view(2, 3, 5, 5)
        else:
            scores = q @ k.transpose(-2, -1)
        scores = self.scaled(scores)
        scores = scores.float() if case.cast == "float" else scores
        for mask in case.masks:
            scores = self.masked(scores, mask)
        scores = scores * 0.5 if case.scaled_late else scores
        weights = torch.softmax(scores, -1, dtype=torch.float32) if case.cast == "softmax" else scores.softmax(-1)
        weights = weights.type_as(q) if case.cast != "none" else weights
        if flat:
            return torch.bmm(weights.view(6, 5, 5), v.reshape(6, 5, 4)).view(2, 3, 5, 4)
        return torch.einsum("bhij,bhjd->bhid", weights, v) if case.product == "einsum" else weights @ v

    def scaled(self, scores: Any) -> Any:
        scores = scores * 0.8 if "mul" in self.case.scales else scores
        scores = scores / 1.5 if "div" in self.case.scales else scores
        return scores * self.heads if "tensor" in self.case.scales else scores

    def masked(self, scores: Any, mask: str) -> Any:
        match mask:
            case "bias":
                return self.bias + scores
            case "minus":
                return scores - 1e4 * self.gone.float()
            case "fill":
                return scores.masked_fill(self.gone, -torch.inf)
            case "where":
                return torch.where(self.gone, -torch.inf, scores)
            case "low":
                return scores.masked_fill(self.gone, torch.finfo(torch.float32).min)
            case _:
                return torch.where(self.gone.logical_not(), scores, -1e9)


@settings(max_examples=80)
@given(written())
def test_by_hand(case: Written) -> None:
    model = ByHand(case)
    generator = torch.Generator().manual_seed(case.seed + 1)
    inputs = {name: torch.randn(2, 3, 5, 4, generator=generator) for name in ("q", "k", "v")}
    traced = fx.symbolic_trace(model)
    fused = fuse_attention(traced, tuple(inputs.values()))
    fusion = fusion_of(fused)
    assert fusion is not None
    low_then_added = any(
        m.startswith("low") and set(case.masks[i:]) & {"bias", "minus"} for i, m in enumerate(case.masks)
    )
    regrouped = case.product == "bmm" and "tensor" in case.scales
    wanted = not low_then_added and not regrouped
    assert len(calls(fused)) == wanted, fusion.refused
    comparing.agree(comparing.run(fused, inputs, grad=False), comparing.run(traced, inputs, grad=False))
    if not case.empty_row:
        comparing.agree(comparing.run(fused, inputs, grad=True), comparing.run(traced, inputs, grad=True))
