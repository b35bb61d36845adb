"""Small real architectures: every attention is decomposed and fused back, with equal outputs and the same weights."""

from __future__ import annotations

import re

import pytest
import torch

import attention

PROJECTS = re.compile(r"(query|q_proj|c_attn|\.q|in_proj)\.?_?weight$")  # of queries, in the names of these models


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.campaign if number % 3 else ())
        for number, name in enumerate(attention.SMALL)
    ],
)
def test_every_attention_is_decomposed_and_fused_back(name: str) -> None:
    subject = attention.SMALL[name]()
    verdict = attention.judge(subject)
    assert verdict.varied
    assert verdict.same_weights
    assert len(verdict.found.attentions) == subject.attentions
    assert not verdict.found.opaque
    assert verdict.error <= 1e-5
    assert verdict.calls == subject.attentions
    assert verdict.fused_error <= 1e-5


@pytest.mark.parametrize("name", ["torchvision ViT", "BERT", "GPT-2", "Llama", "T5"])
def test_the_weights_make_attention_sensitive_to_errors(name: str) -> None:
    """With initial weights, attention is nearly a mean, and a wrong scale would not be noticed."""
    subject = attention.SMALL[name]()
    wanted = attention.outputs(subject.module, subject)
    projections = [each for path, each in subject.module.named_parameters() if PROJECTS.search(path)]
    assert projections
    with torch.no_grad():
        for each in projections:
            each.mul_(1.01)
    assert attention.worst(attention.outputs(subject.module, subject), wanted) > 1e-4


def test_the_campaign_counts_attentions_correctly(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = attention.SMALL["torchvision ViT"]()
    monkeypatch.setattr(attention, "fuse_attention", lambda module, *_args, **_kwargs: module)
    assert attention.judge(subject).calls == 0
    before = attention.weights(subject.module)
    with torch.no_grad():
        next(subject.module.parameters()).mul_(1.01)
    assert attention.weights(subject.module) != before
