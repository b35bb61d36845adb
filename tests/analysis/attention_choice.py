"""How a transformers model computes attention."""

from __future__ import annotations

from torch import nn


def set_attention(module: nn.Module, implementation: str) -> None:
    """Let a transformers model compute attention with "eager" operators or with "sdpa"."""
    choose = module.set_attn_implementation
    assert callable(choose)
    choose(implementation)
