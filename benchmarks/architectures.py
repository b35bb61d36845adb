"""Real architectures at small sizes: what export, tags and extraction are shown to hold for.

    python benchmarks/architectures.py [NAME ...]      builds each, runs it in torch, shows what comes out

Configs only, seeded weights that show in the output, inputs that tell (two items to a batch, the second one padded).
Small means two layers; widths are real where a claim names the model (BERT-tiny, ResNet-50). No two sizes that could
be mistaken for each other are alike where the architecture lets us choose.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

import handmade
import zoo
from sardonyx.frontend.tracing.structure import Flat
from zoo import SEED

if TYPE_CHECKING:
    from sardonyx.verbs.export.export import Exported

BATCH, LENGTH, PADDED, PAST = 2, 11, 7, 5


@dataclass(frozen=True)
class Case:
    """A module with example inputs, and the dims that the export leaves open."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Mapping[str, Mapping[int, str]] | None = None


def build(name: str) -> Case:
    """One architecture, seeded, in eval mode, attention in plain operators."""
    torch.manual_seed(SEED)
    case = ARCHITECTURES[name]()
    module = zoo.ready(case.module)
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    if norms:
        calibrate(case, norms)
    return Case(module, case.args, case.kwargs, case.dynamic)


def calibrate(case: Case, norms: list[nn.modules.batchnorm._BatchNorm]) -> None:
    """Give convolutions some strength and norms the example's statistics, as training would: else the signal fades."""
    for each in case.module.modules():
        if isinstance(each, nn.Conv2d):
            nn.init.kaiming_normal_(each.weight)
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        case.module(*case.args, **case.kwargs)
        for norm in norms:
            norm.eval()
            norm.running_mean += 0.1 * norm.running_var.sqrt()  # an exactly centred batch would hide a wrong mean


def tokens(vocabulary: int = 96) -> torch.Tensor:
    """A batch of token ids."""
    return torch.randint(3, vocabulary, (BATCH, LENGTH))


def padding(length: int = LENGTH, kept: int = PADDED) -> torch.Tensor:
    """A mask whose second row ends early."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, kept:] = 0
    return mask


def picture(size: int) -> torch.Tensor:
    """A batch of pictures."""
    return torch.randn(BATCH, 3, size, size)


def pretrained(model: str, config: str, sizes: Mapping[str, Any], **inputs: Any) -> Case:
    """A transformers model from a config, called by keyword."""
    library = zoo.transformers()
    return Case(getattr(library, model)(getattr(library, config)(**sizes)), kwargs=inputs)


def text_encoder(model: str, config: str, *, segments: bool = False, **sizes: Any) -> Case:
    """A BERT-like encoder over a padded batch."""
    inputs = {"input_ids": tokens(), "attention_mask": padding()}
    if segments:
        inputs["token_type_ids"] = torch.randint(0, 2, (BATCH, LENGTH))
    return pretrained(model, config, {"vocab_size": 96, "max_position_embeddings": 40, **sizes}, **inputs)


BERT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80}
GPT2 = {
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 40,
    "vocab_size": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {  # TinyLlama's proportions: eight times as many queries as keys, the width 2.75 times in the middle
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "vocab_size": 96,
}
VIT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80}
PATCHES = {"image_size": 32, "patch_size": 8}


def bert_tiny_case() -> Case:
    """BERT L-2 H-128 A-2, the model that claims are made about."""
    model, inputs = zoo.bert_tiny()
    return Case(model, kwargs=inputs)


def bert_dynamic() -> Case:
    """BERT with batch and sequence left open."""
    case = text_encoder("BertModel", "BertConfig", segments=True, **BERT)
    free = {0: "batch", 1: "sequence"}
    return Case(case.module, kwargs=case.kwargs, dynamic=dict.fromkeys(case.kwargs, free))


def decoder(model: str, config: str, sizes: Mapping[str, Any]) -> Case:
    """A causal language model over a padded batch, without a cache."""
    return pretrained(model, config, {**sizes, "use_cache": False}, input_ids=tokens(), attention_mask=padding())


def decoder_with_past(model: str, config: str, sizes: Mapping[str, Any], heads: int, width: int) -> Case:
    """One step of a causal language model that has seen some tokens already."""
    cache = zoo.transformers().DynamicCache
    layers = [(torch.randn(BATCH, heads, PAST, width), torch.randn(BATCH, heads, PAST, width)) for _ in range(2)]
    inputs = {
        "input_ids": torch.randint(3, 96, (BATCH, 1)),
        "attention_mask": padding(PAST + 1, kept=PAST - 1).flip(1),  # generation pads on the left
        "past_key_values": cache(layers),
        "use_cache": True,
    }
    return pretrained(model, config, sizes, **inputs)


def sequence_to_sequence(model: str, config: str, sizes: Mapping[str, Any]) -> Case:
    """Encoder and decoder over padded batches of different lengths."""
    decoder_ids = torch.randint(3, 96, (BATCH, 6))
    inputs = {"input_ids": tokens(), "attention_mask": padding(), "decoder_input_ids": decoder_ids}
    return pretrained(model, config, {"vocab_size": 96, "use_cache": False, **sizes}, **inputs)


def bart() -> Case:
    """BART, encoder and decoder."""
    each = {"layers": 2, "attention_heads": 4, "ffn_dim": 80}
    both = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in each.items()}
    return sequence_to_sequence("BartModel", "BartConfig", {"d_model": 48, "max_position_embeddings": 40, **both})


def t5() -> Case:
    """T5, encoder and decoder."""
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 2, "num_heads": 4}
    return sequence_to_sequence("T5Model", "T5Config", sizes)


def whisper() -> Case:
    """Whisper, encoder and decoder."""
    each = {"layers": 2, "attention_heads": 4, "ffn_dim": 80}
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in each.items()}
    sizes |= {"d_model": 48, "vocab_size": 96, "max_source_positions": 30, "max_target_positions": 20}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 2)
    inputs = {"input_features": torch.randn(BATCH, 80, 60), "decoder_input_ids": torch.randint(3, 96, (BATCH, 6))}
    inputs["decoder_attention_mask"] = padding(6, kept=4)
    return pretrained("WhisperModel", "WhisperConfig", {**sizes, **special, "use_cache": False}, **inputs)


def sam_vision() -> Case:
    """SAM's vision encoder: windows, relative positions, a global layer, a convolutional neck."""
    sizes = {**VIT, "image_size": 64, "patch_size": 8, "window_size": 3, "global_attn_indexes": [1]}
    more = {"output_channels": 20, "mlp_dim": 80, "initializer_range": 0.02}  # its default lets nothing through
    del sizes["intermediate_size"]
    return pretrained("SamVisionModel", "SamVisionConfig", {**sizes, **more}, pixel_values=picture(64))


def swin() -> Case:
    """Swin with shifted windows and a patch merger."""
    sizes = {
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "image_size": 32,
        "patch_size": 4,
    }
    return pretrained("SwinModel", "SwinConfig", sizes, pixel_values=picture(32))


def convnext() -> Case:
    """ConvNeXt."""
    sizes = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]}
    return pretrained("ConvNextModel", "ConvNextConfig", sizes, pixel_values=picture(64))


def mobilevit() -> Case:
    """MobileViT."""
    sizes = {"image_size": 64, "hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 16, 20, 24, 28, 32, 48]}
    return pretrained("MobileViTModel", "MobileViTConfig", sizes, pixel_values=picture(64))


def wav2vec2() -> Case:
    """Wav2Vec2; its positional convolution is parametrized."""
    convolutions = {"conv_dim": (24, 24, 24), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    return pretrained(
        "Wav2Vec2Model", "Wav2Vec2Config", {**BERT, **convolutions, **positions}, input_values=torch.randn(BATCH, 800)
    )


def clip() -> Case:
    """CLIP, both towers."""
    text = {**BERT, "vocab_size": 96, "max_position_embeddings": 40, "bos_token_id": 1, "eos_token_id": 95}
    sizes = {"text_config": text, "vision_config": {**VIT, **PATCHES}, "projection_dim": 20}
    inputs = {"input_ids": tokens(95), "attention_mask": padding(), "pixel_values": picture(32)}
    inputs["input_ids"][:, -1] = 95
    return pretrained("CLIPModel", "CLIPConfig", sizes, **inputs)


def vision(name: str, size: int = 64) -> Case:
    """A torchvision classifier on small pictures."""
    return Case(getattr(zoo.torchvision().models, name)(weights=None, num_classes=10), (picture(size),))


def sequential() -> Case:
    """Nothing but containers."""
    inner = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 16)))
    return Case(nn.Sequential(inner, nn.ReLU(), nn.Linear(16, 5), nn.Softmax(-1)), (torch.randn(BATCH, 16),))


def transformer_encoder() -> Case:
    """torch's own encoder, its fast path included where torch takes it."""
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    return Case(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(BATCH, LENGTH, 24),))


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    "bert-tiny": bert_tiny_case,
    "bert": lambda: text_encoder("BertModel", "BertConfig", segments=True, **BERT),
    "bert-dynamic": bert_dynamic,
    "roberta": lambda: text_encoder("RobertaModel", "RobertaConfig", **BERT, pad_token_id=1),
    "distilbert": lambda: text_encoder(
        "DistilBertModel", "DistilBertConfig", dim=48, hidden_dim=80, n_layers=2, n_heads=4
    ),
    "gpt2": lambda: decoder("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2-past": lambda: decoder_with_past("GPT2LMHeadModel", "GPT2Config", GPT2, 4, 12),
    "llama": lambda: decoder("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama-past": lambda: decoder_with_past("LlamaForCausalLM", "LlamaConfig", LLAMA, 1, 8),
    "qwen3": lambda: decoder("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "num_key_value_heads": 4, "head_dim": 12}),
    "t5": t5,
    "bart": bart,
    "whisper": whisper,
    "vit": lambda: pretrained("ViTModel", "ViTConfig", {**VIT, **PATCHES}, pixel_values=picture(32)),
    "deit": lambda: pretrained("DeiTModel", "DeiTConfig", {**VIT, **PATCHES}, pixel_values=picture(32)),
    "sam-vision": sam_vision,
    "swin": swin,
    "convnext": convnext,
    "mobilevit": mobilevit,
    "wav2vec2": wav2vec2,
    "clip": clip,
    "resnet-50": lambda: vision("resnet50"),
    "efficientnet": lambda: vision("efficientnet_b0"),
    "mobilenet-v2": lambda: vision("mobilenet_v2"),
    "mobilenet-v3": lambda: vision("mobilenet_v3_small"),
    "cnn-mlp": lambda: Case(handmade.ConvolutionAndPerceptron(), (picture(16),)),
    "cnn-attention": lambda: Case(handmade.ConvolutionAndAttention(), (picture(13),)),
    "sequential": sequential,
    "called-twice": lambda: Case(handmade.CalledTwice(), (torch.randn(BATCH, 12),)),
    "two-names": lambda: Case(handmade.TwoNames(), (torch.randn(BATCH, 12),)),
    "transformer-encoder": transformer_encoder,
    "lstm": lambda: Case(handmade.Tagger(), (tokens(),)),
}


def export(case: Case, path: Path, exporter: str, *, verify: Literal["end", "off"] = "end") -> Exported:
    """Export a case through the public verb, on inputs of its own: caches grow in place."""
    from sardonyx.verbs.export.export import export as verb  # here, since most of what builds a case exports nothing

    args, kwargs = copy.deepcopy((case.args, dict(case.kwargs)))
    return verb(case.module, args, path, kwargs=kwargs, exporter=exporter, dynamic=case.dynamic, verify=verify)


def run(case: Case) -> list[torch.Tensor]:
    """Every tensor that a case's module returns, caches included."""
    args, kwargs = copy.deepcopy((case.args, dict(case.kwargs)))
    with torch.no_grad():
        return Flat(case.module(*args, **kwargs)).tensors


def main(names: list[str]) -> None:
    """Run each in torch."""
    for name in names or ARCHITECTURES:
        began = time.perf_counter()
        case = build(name)
        shapes = " ".join(f"{tuple(t.shape)}±{t.float().std():.2g}" for t in run(case))
        print(f"{name:20s} {time.perf_counter() - began:5.1f} s  {shapes}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
