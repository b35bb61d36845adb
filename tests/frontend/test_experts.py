"""Mixtures of experts export with both exporters, for any routing; the module keeps its implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sardonyx
from sardonyx.errors import ModelError
from sardonyx.frontend.models import resolve
from sardonyx.frontend.tracing.traced import TRACEABLE, Exporter, traceable_experts
from sardonyx.verification import Oracle, seeds_from

SMALL = "hidden_size=32,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2,vocab_size=100"
MIXTURES = {
    "Mixtral": f"MixtralForCausalLM?{SMALL},intermediate_size=48,num_local_experts=4,output_router_logits=true",
    "Qwen3-MoE": f"Qwen3MoeForCausalLM?{SMALL},moe_intermediate_size=16,num_experts=4,num_experts_per_tok=2,head_dim=8",
    "GPT-OSS": f"GptOssForCausalLM?{SMALL},intermediate_size=16,num_local_experts=4,num_experts_per_tok=2,head_dim=8",
}


def implementation(module: nn.Module) -> str:
    """The expert implementation that a model uses."""
    config: Any = module.config
    return config._experts_implementation


def experts_of(module: nn.Module) -> nn.Module:
    """The module with the weights of all experts."""
    return next(each for each in module.modules() if any(p.dim() == 3 for p in each.parameters(recurse=False)))


@pytest.mark.parametrize("exporter", ["dynamo", pytest.param("torchscript", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("source", MIXTURES.values(), ids=MIXTURES)
def test_a_mixture_of_experts_is_verified_on_trials_that_route_differently(
    source: str, exporter: Exporter, tmp_path: Path
) -> None:
    module = resolve(f"hf-config:{source}").module
    own = implementation(module)
    assert own != TRACEABLE
    path = tmp_path / "model.onnx"
    made = sardonyx.export(module, output=path, exporter=exporter)
    assert made.verdict is not None
    assert made.verdict.passed
    assert len(made.verdict.trials) == 5
    assert f"experts exported as {TRACEABLE} (the model runs {own})" in made.notes
    assert implementation(module) == own

    chosen: list[list[int]] = []
    seen = experts_of(module).register_forward_pre_hook(lambda _, args: chosen.append(args[1].flatten().tolist()))
    for answer in Oracle(path, seeds=seeds_from(0), trials=3).answers():
        with torch.no_grad():
            module(**{name: torch.tensor(value) for name, value in answer.inputs.feeds.items()})
    seen.remove()
    assert all(len(set(experts)) > 2 for experts in chosen)
    assert len({tuple(experts) for experts in chosen}) == 3


def test_the_expert_implementation_is_restored_after_a_failure() -> None:
    module = resolve(f"hf-config:{MIXTURES['Mixtral']},experts_implementation=eager").module
    seen: list[str] = []

    def failing() -> None:
        with traceable_experts(nn.Sequential(module)):
            seen.append(implementation(module))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert seen == [TRACEABLE]
    assert implementation(module) == "eager"


class Untraceable(nn.Module):
    """Neither exporter can trace it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            return torch.linalg.eigvalsh(x @ x.T)
        return x


def test_if_both_exporters_fail_both_reasons_are_given_and_neither_is_a_hint() -> None:
    for exporter in ("dynamo", "torchscript"):
        with pytest.raises(ModelError) as refusal:
            sardonyx.export(Untraceable(), torch.ones(3, 3), exporter=exporter)
        assert "dynamo: " in refusal.value.message
        assert "torchscript: " in refusal.value.message
        assert "exporter" not in (refusal.value.hint or "")
