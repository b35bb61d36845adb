"""Is every attention of real models spelled out, and fused back, with equal outputs and the caller's weights?

    python benchmarks/attention.py [NAME ...] [--small]

Real widths and depths where one machine holds them (the two large decoders have four layers), seeded weights with heads
that let something through, padded masks. Prints a Markdown table; `--small` takes the same architectures at two layers,
which is what the tests hold. Nodes before are those of `torch.fx.symbolic_trace`, or of the plain exported graph.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError

import architectures
import zoo
from sardonyx.frontend.attention.calling import Arguments, Flattened
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.fuse import fuse_attention
from sardonyx.frontend.attention.roles import Decomposition, decomposition_of
from sardonyx.frontend.tracing.structure import Flat


@dataclass(frozen=True)
class Subject:
    """A model on its inputs, and how many attentions it has."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    attentions: int = 0


@dataclass(frozen=True)
class Verdict:
    """What became of a model."""

    found: Decomposition
    nodes: int
    error: float  # relative to the largest element of each output
    calls: int  # of scaled_dot_product_attention after fusing
    fused_error: float
    same_weights: bool  # byte for byte, and the same objects, in the model before and after and in the result
    varied: bool  # no output is constant
    seconds: float


def judge(subject: Subject) -> Verdict:
    """Decompose a model and fuse it back, and compare all three."""
    before, wanted = weights(subject.module), outputs(subject.module, subject)
    args, kwargs = inputs(subject)
    began = time.perf_counter()
    result = decompose(subject.module, args, kwargs=kwargs)
    seconds = time.perf_counter() - began
    found = decomposition_of(result)
    assert found is not None
    used = {name: each for name, each in weights(result).items() if name in before}
    fused = fuse_attention(result, args, kwargs=kwargs)
    return Verdict(
        found=found,
        nodes=len(result.graph.nodes),
        error=worst(outputs(result, subject), wanted),
        calls=sum("scaled_dot_product_attention" in str(node.target) for node in fused.graph.nodes),
        fused_error=worst(outputs(fused, subject), wanted),
        same_weights=weights(subject.module) == before and used == {name: before[name] for name in used},
        varied=all(tensor.float().std() > 0 for tensor in wanted if tensor.numel() > 1),
        seconds=seconds,
    )


def inputs(subject: Subject) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs, anew: caches grow in place."""
    return copy.deepcopy((subject.args, dict(subject.kwargs)))


def outputs(module: nn.Module, subject: Subject) -> list[torch.Tensor]:
    """Every tensor that a module returns."""
    args, kwargs = inputs(subject)
    with torch.no_grad():
        return Flat(module(*args, **kwargs)).tensors


def worst(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element of its output; infinite where one is not a number."""
    errors = [(one - other).abs().max() / other.abs().max() for one, other in zip(got, wanted, strict=True)]
    return max(error.item() if torch.isfinite(error) else float("inf") for error in errors)


def weights(module: nn.Module) -> dict[str, tuple[int, str]]:
    """Every parameter and buffer that is saved: which object it is, and its bytes."""
    state = module.state_dict(keep_vars=True)
    return {
        name: (id(tensor), hashlib.blake2b(tensor.detach().numpy(), digest_size=8).hexdigest())
        for name, tensor in state.items()
    }


def plain_nodes(subject: Subject, found: Decomposition) -> int | str:
    """How many nodes the graph has where nothing is spelled out."""
    args, kwargs = inputs(subject)
    if found.road == "symbolic-trace":
        try:
            return len(fx.symbolic_trace(subject.module).graph.nodes)
        except (TraceError, RuntimeError):
            return "cannot"
    arguments = Arguments(subject.module, args, kwargs)
    flat = Flattened(subject.module, arguments)
    program = torch.export.export(flat, tuple(arguments.tensors), strict=False)
    return len(program.module(check_guards=False).graph.nodes)


def telling(module: nn.Module, kind: str = "sdpa") -> nn.Module:
    """The model with attention as one call or written by hand, where it has the choice, and with sharper weights.

    As initialised, scores are so small that every attention takes the mean of its values: a wrong scale would not show.
    Twice as sharp, T5's unscaled scores pick single keys and magnify rounding (4.8e-5 in float32, 1e-15 in float64).
    """
    if hasattr(module, "set_attn_implementation"):
        module.set_attn_implementation(kind)
    torch.manual_seed(zoo.SEED)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
    return module


def small(name: str, attentions: int, kind: str = "sdpa") -> Callable[[], Subject]:
    """One of the small architectures."""

    def build() -> Subject:
        case = architectures.build(name)
        return Subject(telling(case.module, kind), case.args, case.kwargs, attentions)

    return build


def small_vision(build: Callable[[Any], nn.Module], attentions: int) -> Callable[[], Subject]:
    """A small model out of torchvision's own classes."""

    def built() -> Subject:
        torch.manual_seed(zoo.SEED)
        return Subject(
            telling(zoo.ready(build(zoo.torchvision().models))), (torch.randn(2, 3, 32, 32),), {}, attentions
        )

    return built


def large(name: str, attentions: int, kind: str = "sdpa") -> Callable[[], Subject]:
    """One of the reference models, its text padded."""

    def build() -> Subject:
        module, given = zoo.build(name)
        if "attention_mask" in given:
            given["attention_mask"][:, -9:] = 0
        by_position = list(given) == ["input"]
        args, kwargs = (tuple(given.values()), {}) if by_position else ((), given)
        return Subject(telling(module, kind), args, kwargs, attentions)

    return build


def built(model: str, config: str, attentions: int, given: Callable[[], Mapping[str, Any]], **sizes: Any) -> Any:
    """A transformers model from its config."""

    def build() -> Subject:
        torch.manual_seed(zoo.SEED)
        module, _ = zoo.hugging_face(model, config, dict, **sizes)
        return Subject(telling(zoo.ready(module)), (), given(), attentions)

    return build


def two_texts() -> dict[str, Any]:
    """What an encoder and a decoder read, the first text padded."""
    given = zoo.text(64)
    given["attention_mask"][:, -9:] = 0
    return {**given, "decoder_input_ids": torch.randint(3, 1000, (1, 17))}


def sound_and_text() -> dict[str, Any]:
    """What Whisper hears and what it wrote so far."""
    return {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.randint(3, 1000, (1, 17))}


def picture_and_text() -> dict[str, Any]:
    """What CLIP compares."""
    return {**zoo.text(32), **zoo.image()}


def vit_large() -> Subject:
    """torchvision's ViT-L/16."""
    torch.manual_seed(zoo.SEED)
    module = telling(zoo.ready(zoo.torchvision().models.vit_l_16(weights=None)))
    return Subject(module, (torch.randn(1, 3, 224, 224),), {}, 24)


_T5 = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "use_cache": False}
_BART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12, "use_cache": False}
_BART |= {"decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
_WHISPER = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6, "use_cache": False}
_WHISPER |= {"decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}

LARGE: dict[str, Callable[[], Subject]] = {
    "torchvision ViT-B/16": large("tv-vit-b16", 12),
    "torchvision ViT-L/16": vit_large,
    "torchvision Swin-T": large("swin-t", 12),
    "BERT-base": large("bert-base", 12),
    "BERT-base, eager": large("bert-base", 12, "eager"),
    "RoBERTa-base": large("roberta-base", 12),
    "DistilBERT": large("distilbert", 6),
    "GPT-2": large("gpt2", 12),
    "GPT-2, eager": large("gpt2", 12, "eager"),
    "Llama, 4 layers": large("llama-4l", 4),
    "Llama, 4 layers, eager": large("llama-4l", 4, "eager"),
    "Qwen3, 4 layers": large("qwen3-4l", 4),
    "T5-small": built("T5Model", "T5Config", 18, two_texts, **_T5),
    "BART-base": built("BartModel", "BartConfig", 18, two_texts, **_BART),
    "Whisper-tiny": built("WhisperModel", "WhisperConfig", 12, sound_and_text, **_WHISPER),
    "ViT-base": large("vit-base", 12),
    "DeiT-small": large("deit-small", 12),
    "CLIP-base": built("CLIPModel", "CLIPConfig", 24, picture_and_text),
    "Wav2Vec2-base": large("wav2vec2-base", 12),
}

SMALL: dict[str, Callable[[], Subject]] = {
    "torchvision ViT": small_vision(
        lambda models: models.VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=48, mlp_dim=80), 2
    ),
    "torchvision Swin": small_vision(
        lambda models: models.SwinTransformer([4, 4], 16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4]), 4
    ),
    "BERT": small("bert", 2),
    "BERT, eager": small("bert", 2, "eager"),
    "RoBERTa": small("roberta", 2),
    "DistilBERT": small("distilbert", 2),
    "GPT-2": small("gpt2", 2),
    "GPT-2, eager": small("gpt2", 2, "eager"),
    "GPT-2 with a past": small("gpt2-past", 2),
    "Llama": small("llama", 2),
    "Llama, eager": small("llama", 2, "eager"),
    "Qwen3": small("qwen3", 2),
    "T5": small("t5", 6),
    "T5, eager": small("t5", 6, "eager"),
    "BART": small("bart", 6),
    "Whisper": small("whisper", 6),
    "ViT": small("vit", 2),
    "DeiT": small("deit", 2),
    "CLIP": small("clip", 4),
    "Wav2Vec2": small("wav2vec2", 2),
    "nn.TransformerEncoder": small("transformer-encoder", 2),
}

HEADER = (
    "| model | road | nodes | spelled out | attentions | error | SDPA again | error | weights | s |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---|---:|"
)


def line(name: str, subject: Subject, verdict: Verdict) -> str:
    """A row of the table."""
    cells = (
        name,
        verdict.found.road,
        plain_nodes(subject, verdict.found),
        verdict.nodes,
        f"{len(verdict.found.attentions)}/{subject.attentions}",
        f"{verdict.error:.1e}",
        f"{verdict.calls}/{subject.attentions}",
        f"{verdict.fused_error:.1e}",
        "same" if verdict.same_weights and verdict.varied else "CHANGED" if verdict.varied else "SAY NOTHING",
        f"{verdict.seconds:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Judge the named models, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    zoo.torchvision()
    warnings.simplefilter("ignore")
    subjects = SMALL if chosen.small else LARGE
    print(HEADER)
    for name in chosen.names or subjects:
        subject = subjects[name]()
        print(line(name, subject, judge(subject)), flush=True)
        del subject
        gc.collect()


if __name__ == "__main__":
    main()
