"""Decoder families, exported as a user would and verified: both exporters, static, dynamic, with and without a past.

All combinations take minutes: `pytest -m campaign tests/frontend/test_decoder_families.py`.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any, Literal

import pytest
import torch

import sardonyx
from sardonyx.records.run import Verdict

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64, **TOKENS}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "GPT2": GPT,
    "Gemma3Text": {
        **GROUPED, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
    },
    "Mistral": {**GROUPED, "sliding_window": 4},
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Phi3": {**GROUPED, "original_max_position_embeddings": 64, **TOKENS},
    "OPT": {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "GPTNeoX": SIZES,
    "Falcon": {**SIZES, **TOKENS},
    "GPTJ": {**GPT, "rotary_dim": 4},
    "Cohere": {**GROUPED, **TOKENS},
}  # fmt: skip
Exporter = Literal["dynamo", "torchscript"]
SLICE: list[tuple[str, Exporter, Literal["auto"] | None, bool]] = [
    ("Gemma3Text", "dynamo", None, True),
    ("GPT2", "torchscript", "auto", True),
    ("Mistral", "torchscript", "auto", False),
    ("Bloom", "torchscript", None, False),
]


def exported(family: str, exporter: Exporter, dynamic: Literal["auto"] | None, with_past: bool) -> Verdict:
    transformers = importlib.import_module("transformers")  # pyright takes 19 s for what it would import by name
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    module = transformers.AutoModelForCausalLM.from_config(config)
    made = sardonyx.export(
        module, exporter=exporter, dynamic=dynamic, options=sardonyx.ExportOptions(with_past=with_past)
    )
    assert made.verdict is not None
    return made.verdict


@pytest.mark.parametrize(("family", "exporter", "dynamic", "with_past"), SLICE)
def test_a_decoder_is_exported_and_verified(
    family: str, exporter: Exporter, dynamic: Literal["auto"] | None, with_past: bool
) -> None:
    verdict = exported(family, exporter, dynamic, with_past)
    assert verdict.passed
    assert len(verdict.trials) >= 5  # without padding, the example, and random ones; and the other sides of branches
    assert [line for line in verdict.not_covered if "of 'logits' are padding that sees no key" in line]


@pytest.mark.campaign
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("exporter", "dynamic", "with_past"),
    list(itertools.product(("dynamo", "torchscript"), (None, "auto"), (False, True))),
)
def test_every_decoder_is_exported_and_verified(
    family: str, exporter: Exporter, dynamic: Literal["auto"] | None, with_past: bool
) -> None:
    assert exported(family, exporter, dynamic, with_past).passed
