"""Attention written by hand becomes one call that gives the same, forwards and backwards, in both vocabularies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from attention.by_hand import BATCH, HEADS, LENGTH, WAYS, WIDTH, Batched, Causal, MaskedFill, Modules, Projected, SharedHeads, built
from torch import fx, nn
from torch.nn import functional as F

from sardonyx.attention.fusing import fuse_attention
from sardonyx.attention.fusion.record import fusion_of

_SDPA = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_NEED_FACTS = {"Batched", "AddedInProduct", "Windowed"}  # regrouped scores: only sizes tell that rows stay rows


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.target in _SDPA]


def softmaxes(module: fx.GraphModule) -> int:
    return sum("softmax" in str(node.target).lower() for node in module.graph.nodes)


def same(module: nn.Module, other: nn.Module, *inputs: torch.Tensor, limit: float = 1e-5) -> None:
    """The outputs are the same relative to their size, and the gradients relative to the largest of them."""
    (output, gradients), (other_output, other_gradients) = _run(module, inputs), _run(other, inputs)
    assert (output - other_output).abs().max() <= limit * output.abs().max()
    assert gradients.keys() == other_gradients.keys()
    largest = max(each.abs().max() for each in gradients.values())
    for key, gradient in gradients.items():
        assert (gradient - other_gradients[key]).abs().max() <= limit * largest


def _run(module: nn.Module, inputs: Iterable[torch.Tensor]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    parameters = list(module.parameters())
    output = module(*leaves)
    weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
    found = torch.autograd.grad((output * weights).sum(), [*leaves, *parameters], allow_unused=True)
    keys = [*range(len(leaves)), *(id(parameter) for parameter in parameters)]
    return output.detach(), {key: each for key, each in zip(keys, found, strict=True) if each is not None}


@pytest.mark.parametrize("way", WAYS)
def test_symbolic(way: str) -> None:
    module, x = built(WAYS[way])
    traced = fx.symbolic_trace(module)
    code = traced.code
    fused = fuse_attention(traced, x)
    assert (len(calls(fused)), softmaxes(fused)) == (1, 0)
    assert traced.code == code
    same(module, fused, x)


@pytest.mark.parametrize("way", WAYS)
def test_exported(way: str) -> None:
    module, x = built(WAYS[way])
    exported: Any = torch.export.export(module, (x,), strict=False).module()
    fused = fuse_attention(exported)
    assert (len(calls(fused)), softmaxes(fused)) == (1, 0), fusion_of(fused)
    assert torch.allclose(fused(x), module(x), atol=1e-6, rtol=1e-5)
    assert all("val" in node.meta for node in calls(fused))


@pytest.mark.parametrize("way", WAYS)
def test_without_example_inputs(way: str) -> None:
    module, x = built(WAYS[way])
    fused = fuse_attention(fx.symbolic_trace(module))
    fusion = fusion_of(fused)
    assert fusion is not None
    assert len(calls(fused)) == (way not in _NEED_FACTS)
    assert all("example inputs would tell" in each.reason for each in fusion.refused)
    same(module, fused, x)
