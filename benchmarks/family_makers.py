"""How the architectures of the family zoo are made: small sizes, seeded weights, inputs that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import zoo

BATCH, LENGTH = 2, 11
AS_IT_IS = object()  # a size that a config has a field for and does not take

SMALL: dict[str, Any] = {  # given to a config where it has a field of that name
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim"), 48),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "mlp_dim"), 80),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "num_decoder_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "d_kv": 12,
    "embedding_size": 24,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 32,
    "patch_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "num_labels": 5,
    "use_cache": False,
}


@dataclass(frozen=True)
class Subject:
    """An architecture, the lineage it is of and the family it must be found to be."""

    name: str
    family: str
    group: str
    build: Callable[[], zoo.Built]


def models(family: str, group: str, names: str, inputs: Callable[[], zoo.Inputs], **sizes: Any) -> list[Subject]:
    """Transformers models of one lineage."""
    return [Subject(name, family, group, lambda name=name: sized(name, inputs, **sizes)) for name in names.split()]


def own(family: str, group: str, name: str, model: Callable[[], nn.Module], *inputs: torch.Tensor) -> list[Subject]:
    """A module that is made here; one that takes a single tensor takes it by position."""

    def build() -> zoo.Built:
        module = model().eval()
        with torch.no_grad():
            module(*inputs)  # lazy layers learn their width
        if len(inputs) == 1:
            return module, {"input": inputs[0]}
        names = [name for name in module.forward.__code__.co_varnames if name != "self"][: len(inputs)]
        return module, dict(zip(names, inputs, strict=True))

    return [Subject(name, family, group, build)]


def vision(family: str, group: str, names: str, size: int = 64) -> list[Subject]:
    """Torchvision classifiers of one lineage."""

    def build(name: str) -> zoo.Built:
        return getattr(zoo.torchvision().models, name)(weights=None), {"input": torch.randn(BATCH, 3, size, size)}

    return [Subject(name, family, group, lambda name=name: build(name)) for name in names.split()]


def sized(model: str, inputs: Callable[[], zoo.Inputs], *, part: str = "", **sizes: Any) -> zoo.Built:
    """A transformers model whose config takes every small size it has a field for."""
    kind = getattr(zoo.transformers(), model)
    plain = kind.config_class()
    small = {name: value for name, value in SMALL.items() if name not in sizes and hasattr(plain, name)}
    small |= {name: value for name, value in sizes.items() if value is not AS_IT_IS}
    built = kind(kind.config_class(**small))
    return (getattr(built, part) if part else built), inputs()


def tokens(length: int = LENGTH) -> zoo.Inputs:
    """Token ids and a mask that pads the second text."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, 7:] = 0
    return {"input_ids": torch.randint(3, 96, (BATCH, length)), "attention_mask": mask}


def ids(name: str = "input_ids", length: int = LENGTH) -> zoo.Inputs:
    """Token ids alone."""
    return {name: torch.randint(3, 96, (BATCH, length))}


def pair() -> zoo.Inputs:
    """Texts for an encoder and for a decoder."""
    return tokens() | ids("decoder_input_ids", 6)


def with_memory() -> zoo.Inputs:
    """Tokens, and the states of an encoder that is not in the model."""
    return tokens() | {"encoder_hidden_states": torch.randn(BATCH, 7, 48)}


def drawn(name: str, *shape: int) -> Callable[[], zoo.Inputs]:
    """A batch of numbers."""
    return lambda: {name: torch.randn(BATCH, *shape)}


def picture(size: int = 32) -> Callable[[], zoo.Inputs]:
    """A batch of pictures."""
    return drawn("pixel_values", 3, size, size)
