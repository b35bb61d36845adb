"""The models whose memory is measured: real widths and depths, seeded weights made on the device, inputs by size.

Batches are padded as batches of texts are; a single text has no mask. Attention is SDPA wherever the library offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import zoo

Inputs = dict[str, Any]
TEXT_SIZES = ((1, 128), (4, 512), (16, 1024))
SHORT_SIZES = ((1, 128), (4, 512), (16, 512))  # those whose positions end there
IMAGE_SIZES = ((1, 224), (4, 224), (16, 224))
SOUND_SIZES = ((1, 16000), (4, 32000), (8, 80000))  # samples


@dataclass(frozen=True)
class Subject:
    """A model by its config, and what it is fed at a batch and a length."""

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int, torch.dtype], Inputs]
    sizes: tuple[tuple[int, int], ...]


def torchvision() -> ModuleType:
    """torchvision as it is installed, else as the zoo makes it importable."""
    try:
        import torchvision as package
    except ImportError:
        return zoo.torchvision()
    return package


def pretrained(model: str, config: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """A transformers model from its config."""

    def build() -> torch.nn.Module:
        torchvision()
        import transformers as library

        made = getattr(library, model)(getattr(library, config)(**settings))
        made.set_attn_implementation("sdpa")
        return made

    return build


def vision(name: str) -> Callable[[], torch.nn.Module]:
    """A torchvision classifier."""
    return lambda: getattr(torchvision().models, name)(weights=None)


def ids(batch: int, length: int) -> torch.Tensor:
    """Token ids, none of them special."""
    return torch.randint(5, 1000, (batch, length))


def text(batch: int, length: int, _dtype: torch.dtype) -> Inputs:
    """Token ids; in a batch every second text ends early."""
    if batch == 1:
        return {"input_ids": ids(batch, length)}
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1::2, length * 3 // 4 :] = 0
    return {"input_ids": ids(batch, length), "attention_mask": mask}


def translation(batch: int, length: int, dtype: torch.dtype) -> Inputs:
    """A text and half as much of its translation."""
    return {**text(batch, length, dtype), "decoder_input_ids": ids(batch, length // 2)}


def picture(batch: int, size: int, dtype: torch.dtype) -> Inputs:
    """Pictures as transformers takes them."""
    return {"pixel_values": torch.randn(batch, 3, size, size, dtype=dtype)}


def plain_picture(batch: int, size: int, dtype: torch.dtype) -> Inputs:
    """Pictures by position."""
    return {"": torch.randn(batch, 3, size, size, dtype=dtype)}


def captioned(batch: int, size: int, dtype: torch.dtype) -> Inputs:
    """Pictures and as many texts."""
    return {**text(batch, 77, dtype), **picture(batch, size, dtype)}


def speech(batch: int, length: int, dtype: torch.dtype) -> Inputs:
    """Half a minute of sound as Whisper takes it, and the beginning of what is said."""
    return {"input_features": torch.randn(batch, 80, 3000, dtype=dtype), "decoder_input_ids": ids(batch, length // 8)}


def sound(batch: int, length: int, dtype: torch.dtype) -> Inputs:
    """Sound as samples."""
    return {"input_values": torch.randn(batch, length, dtype=dtype)}


LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
QWEN = {**LLAMA, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
BART = {f"{side}_layers": 6 for side in ("encoder", "decoder")}
BART |= {f"{side}_attention_heads": 12 for side in ("encoder", "decoder")}
BART |= {f"{side}_ffn_dim": 3072 for side in ("encoder", "decoder")} | {"d_model": 768}
WHISPER = {key: (value if "layers" in key else {12: 8, 3072: 2048, 768: 512}[value]) for key, value in BART.items()}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}

SUBJECTS: Mapping[str, Subject] = {
    "vit-b-16": Subject(vision("vit_b_16"), plain_picture, IMAGE_SIZES),
    "vit-l-16": Subject(vision("vit_l_16"), plain_picture, IMAGE_SIZES),
    "swin-t": Subject(vision("swin_t"), plain_picture, IMAGE_SIZES),
    "bert": Subject(pretrained("BertModel", "BertConfig"), text, SHORT_SIZES),
    "roberta": Subject(pretrained("RobertaModel", "RobertaConfig", **ROBERTA), text, SHORT_SIZES),
    "distilbert": Subject(pretrained("DistilBertModel", "DistilBertConfig"), text, SHORT_SIZES),
    "gpt2": Subject(pretrained("GPT2LMHeadModel", "GPT2Config", use_cache=False), text, TEXT_SIZES),
    "llama": Subject(pretrained("LlamaForCausalLM", "LlamaConfig", **LLAMA, use_cache=False), text, TEXT_SIZES),
    "qwen3": Subject(
        pretrained("Qwen3ForCausalLM", "Qwen3Config", **QWEN, head_dim=128, vocab_size=32000, use_cache=False),
        text,
        TEXT_SIZES,
    ),
    "t5": Subject(
        pretrained("T5Model", "T5Config", d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False),
        translation,
        TEXT_SIZES,
    ),
    "bart": Subject(pretrained("BartModel", "BartConfig", **BART, use_cache=False), translation, TEXT_SIZES),
    "whisper": Subject(pretrained("WhisperModel", "WhisperConfig", **WHISPER, use_cache=False), speech, SHORT_SIZES),
    "vit": Subject(pretrained("ViTModel", "ViTConfig"), picture, IMAGE_SIZES),
    "deit": Subject(pretrained("DeiTModel", "DeiTConfig"), picture, IMAGE_SIZES),
    "clip": Subject(pretrained("CLIPModel", "CLIPConfig"), captioned, IMAGE_SIZES),
    "wav2vec2": Subject(pretrained("Wav2Vec2Model", "Wav2Vec2Config"), sound, SOUND_SIZES),
}


def on(device: str, made: Inputs) -> tuple[tuple[torch.Tensor, ...], Inputs]:
    """Positional and keyword arguments on a device."""
    moved = {name: tensor.to(device) for name, tensor in made.items()}
    return ((moved.pop(""),), moved) if "" in moved else ((), moved)
