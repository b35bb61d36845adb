"""A model costs the same as written, decomposed and fused, and each form matches the torch counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import flop_registry

import flops


@pytest.mark.parametrize("name", ["small/transformer-encoder", "small/t5", "small/cnn-attention", "small/llama"])
def test_all_forms_are_counted_as_torch_does(name: str):
    standard, decomposed, fused = flops.rows(name, *flops.subject(name))
    for row in (standard, decomposed, fused):
        assert row.equal, row
    assert standard.flops == decomposed.flops == fused.flops
    assert decomposed.torchs == decomposed.flops > 0, "decomposed, torch has a formula for everything"
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert set(fused.beyond) == {str(attention)} - set(map(str, flop_registry)), "torch counts it from 2.15"
    assert not any("unknown cost" in note for row in (standard, decomposed, fused) for note in row.notes)
