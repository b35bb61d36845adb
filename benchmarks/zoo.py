"""The reference models: real architectures from their configs, seeded random weights, nothing downloaded.

    python benchmarks/zoo.py OUT_DIR EXPORTER [NAME ...]      EXPORTER: torchscript | dynamo

Both exporters write what a user who switches optimization off would get: the raw graph that an optimizer starts from.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from sardonyx.frontend.models import randomize

Inputs = dict[str, torch.Tensor]
Built = tuple[torch.nn.Module, Inputs]
SEED = 0


@functools.cache
def torchvision() -> ModuleType:
    """torchvision without its native operators, which are not needed to build models.

    Its plain wheel does not load beside every torch build, so it is kept out of the ordinary path (see the Makefile)
    and gets the two operator schemas it insists on. To be called before transformers is first imported.
    """
    schemas = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(str(Path(sys.prefix) / "vision"))
    import torchvision as package

    package.schemas_for_import = schemas  # the library object must live as long as the package does
    return package


def transformers() -> Any:
    """Transformers, after torchvision has been made importable for it."""
    torchvision()
    import transformers as package

    return package


def text(length: int = 128, *, token_types: bool = False) -> Inputs:
    """Token ids and a full mask."""
    inputs = {
        "input_ids": torch.randint(1, 1000, (1, length)),
        "attention_mask": torch.ones(1, length, dtype=torch.long),
    }
    return inputs | ({"token_type_ids": torch.zeros(1, length, dtype=torch.long)} if token_types else {})


def hugging_face(model: str, config: str, inputs: Callable[[], Inputs], **settings: Any) -> Built:
    """A transformers model from its config alone."""
    library = transformers()
    return getattr(library, model)(getattr(library, config)(**settings)), inputs()


def bert_tiny() -> Built:
    """BERT L-2 H-128 A-2 with eager attention, on a batch of 2, length 16 with padding."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    torch.manual_seed(SEED)
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 11:] = 0
    model, inputs = hugging_face("BertModel", "BertConfig", lambda: text(16, token_types=True), **sizes)
    return ready(model), {name: value.expand(2, 16) for name, value in inputs.items()} | {
        "input_ids": torch.randint(1, 1000, (2, 16)),
        "attention_mask": mask,
    }


def image(size: int = 224) -> Inputs:
    """One picture as transformers' vision models take it."""
    return {"pixel_values": torch.randn(1, 3, size, size)}


def vision(name: str) -> Built:
    """A torchvision classifier."""
    return getattr(torchvision().models, name)(weights=None), {"input": torch.randn(1, 3, 224, 224)}


def whisper_encoder(width: int, layers: int, heads: int) -> Built:
    """Whisper's encoder alone."""
    model, inputs = hugging_face(
        "WhisperModel",
        "WhisperConfig",
        lambda: {"input_features": torch.randn(1, 80, 3000)},
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_layers=layers,
        decoder_attention_heads=heads,
        decoder_ffn_dim=4 * width,
    )
    return model.encoder, inputs


def llama(layers: int) -> Built:
    """TinyLlama's shape with as many layers as asked for."""
    return hugging_face(
        "LlamaForCausalLM",
        "LlamaConfig",
        lambda: text(64),
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )


def qwen3(layers: int) -> Built:
    """Qwen3-0.6B's shape with a smaller vocabulary and as many layers as asked for."""
    return hugging_face(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        lambda: text(64),
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=32000,
        use_cache=False,
    )


def roberta() -> Built:
    """RoBERTa-base, whose vocabulary and positions differ from the config's defaults."""
    sizes = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    return hugging_face("RobertaModel", "RobertaConfig", text, **sizes)


def t5_encoder() -> Built:
    """T5-small's encoder."""
    sizes = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
    return hugging_face("T5EncoderModel", "T5Config", text, **sizes)


def deit_small() -> Built:
    """DeiT-small."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return hugging_face("DeiTModel", "DeiTConfig", image, **sizes)


ZOO: dict[str, Callable[[], Built]] = {
    "bert-tiny": lambda: (bert_tiny()[0], text(token_types=True)),
    "bert-base": lambda: hugging_face("BertModel", "BertConfig", lambda: text(token_types=True)),
    "distilbert": lambda: hugging_face("DistilBertModel", "DistilBertConfig", text),
    "roberta-base": roberta,
    "gpt2": lambda: hugging_face("GPT2LMHeadModel", "GPT2Config", text, use_cache=False),
    "llama-4l": lambda: llama(4),
    "tinyllama": lambda: llama(22),  # 4.4 GB of weights: for the large-file measurements only
    "qwen3-4l": lambda: qwen3(4),
    "t5-small-enc": t5_encoder,
    "whisper-tiny-enc": lambda: whisper_encoder(384, 4, 6),
    "whisper-base-enc": lambda: whisper_encoder(512, 6, 8),
    "vit-base": lambda: hugging_face("ViTModel", "ViTConfig", image),
    "deit-small": deit_small,
    "mobilevit-s": lambda: hugging_face("MobileViTModel", "MobileViTConfig", lambda: image(256)),
    "wav2vec2-base": lambda: hugging_face(
        "Wav2Vec2Model", "Wav2Vec2Config", lambda: {"input_values": torch.randn(1, 16000)}
    ),
    "resnet-50-hf": lambda: hugging_face("ResNetForImageClassification", "ResNetConfig", image),
    "resnet-50": lambda: vision("resnet50"),
    "efficientnet-b0": lambda: vision("efficientnet_b0"),
    "mobilenetv2": lambda: vision("mobilenet_v2"),
    "mobilenetv3-s": lambda: vision("mobilenet_v3_small"),
    "convnext-t": lambda: vision("convnext_tiny"),
    "swin-t": lambda: vision("swin_t"),
    "tv-vit-b16": lambda: vision("vit_b_16"),
}


def build(name: str) -> Built:
    """The module in eval mode with eager attention and telling weights, and named example inputs."""
    torch.manual_seed(SEED)
    model, inputs = ZOO[name]()
    return ready(model), inputs


def ready(model: torch.nn.Module) -> torch.nn.Module:
    """Eager attention where there is a choice, and weights under which a wrong fold shows."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    return randomize(model)


class Positional(torch.nn.Module):
    """Named inputs as positional ones and tensors out: what the TorchScript exporter needs."""

    def __init__(self, model: torch.nn.Module, names: list[str]):
        super().__init__()
        self.m, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the model by keyword, keep its tensors."""
        by_position = self.names == ["input"]
        out = self.m(*tensors) if by_position else self.m(**dict(zip(self.names, tensors, strict=True)))
        out = out.to_tuple() if hasattr(out, "to_tuple") else out
        return tuple(t for t in out if isinstance(t, torch.Tensor)) if isinstance(out, tuple) else out


def export(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str, *, external: bool = False) -> None:
    """Write the raw export; with TorchScript, integer inputs get dynamic batch and sequence dims."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            how = {"args": (inputs["input"],)} if "input" in inputs else {"args": (), "kwargs": inputs}
            torch.onnx.export(
                model,
                f=str(path),
                dynamo=True,
                opset_version=18,
                optimize=False,
                verbose=False,
                external_data=external,
                **how,
            )
            return
        dynamic = {n: {0: "batch", 1: "seq"} for n, t in inputs.items() if t.dtype == torch.long}
        torch.onnx.export(
            Positional(model, list(inputs)).eval(),
            tuple(inputs.values()),
            str(path),
            dynamo=False,
            opset_version=14,
            do_constant_folding=False,
            input_names=list(inputs),
            dynamic_axes=dynamic or None,
        )


def write(name: str, path: Path, exporter: str) -> None:
    """Export one model of the zoo."""
    model, inputs = build(name)
    export(model, inputs, path, exporter, external=name == "tinyllama")


def main(arguments: list[str]) -> None:
    """Export the named models, or all that fit an inline file."""
    folder, exporter, *names = Path(arguments[0]), *arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or [n for n in ZOO if n != "tinyllama"]:
        began = time.perf_counter()
        write(name, folder / f"{name}.{exporter}.onnx", exporter)
        print(f"{name:18s} {exporter:12s} {time.perf_counter() - began:6.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
