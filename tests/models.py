"""Small real models for tests: real architectures, tiny sizes, non-zero weights, both exporters.

`names()` lists them; the `small_model` fixture in conftest.py exports one on first use and shares the file between all
test processes of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Spec = tuple[str, str]  # model, exporter


def names() -> list[str]:
    """Every small model."""
    return list(_BUILDERS)


def export(name: str, exporter: str, path: Path) -> None:
    """Write a small model's raw export ("torchscript" or "dynamo")."""
    import zoo
    from sardonyx.frontend.tracing.dynamo import without_repetition

    with without_repetition():
        zoo.export(*build(name), path, exporter)


def build(name: str):
    """A small model's live module with non-zero random weights, and its named inputs."""
    import torch

    import zoo

    torch.manual_seed(0)
    model, inputs = _BUILDERS[name]()
    return zoo.ready(model), inputs


def _bert():
    import zoo

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return zoo.hugging_face("BertModel", "BertConfig", lambda: zoo.text(12, token_types=True), vocab_size=1000, **sizes)


def _gpt2():
    import zoo

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 1000}
    return zoo.hugging_face("GPT2LMHeadModel", "GPT2Config", lambda: zoo.text(12), use_cache=False, **sizes)


def _llama():
    import zoo

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return zoo.hugging_face(
        "LlamaForCausalLM",
        "LlamaConfig",
        lambda: zoo.text(12),
        num_key_value_heads=2,
        vocab_size=1000,
        use_cache=False,
        **sizes,
    )


def _swin():
    import torch

    import zoo

    swin = zoo.torchvision().models.swin_transformer.SwinTransformer(
        patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=10
    )
    return swin, {"input": torch.randn(1, 3, 32, 32)}


def _cnn():
    """Conv+BatchNorm in the relevant arrangements: plain, grouped, residual, transposed, after a Linear."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(width, width, 3, padding=1, groups=2, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.act = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.norm(self.conv(x)) + x)

    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()))
    model.add_module("block", Residual(8))
    model.add_module("up", nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2, groups=4), nn.BatchNorm2d(8)))
    model.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()))
    model.add_module("head", nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Hardswish(), nn.Linear(12, 5)))
    return model, {"input": torch.randn(2, 3, 33, 33)}


def _mobilenet():
    import torch

    import zoo

    return zoo.torchvision().models.mobilenet_v3_small(num_classes=10), {"input": torch.randn(1, 3, 64, 64)}


_BUILDERS: dict[str, Callable] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "swin": _swin,
    "cnn": _cnn,
    "mobilenet": _mobilenet,
}
