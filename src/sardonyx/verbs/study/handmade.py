"""Models of the built-in set that have no config: factories that `export` calls by file name and function name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sardonyx.frontend.models import build_seeded


def lstm() -> nn.Module:
    """Return two LSTM layers over a signal, with a classifier on the last state."""
    return build_seeded(lambda: _Recurrent(40, 128, 10), 0)


def mlp() -> nn.Module:
    """Return an MLP of normalized layers with residual connections."""
    return build_seeded(lambda: _Perceptron(64, 256, 10, 4), 0)


def whisper_encoder() -> nn.Module:
    """Return a Whisper encoder: convolutions over a spectrogram, then attention layers."""
    from transformers.models.whisper.configuration_whisper import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=128, encoder_layers=4, encoder_attention_heads=4, encoder_ffn_dim=512, max_source_positions=200
    )
    encoder: Any = build_seeded(lambda: WhisperEncoder(config), 0)
    return _Hidden(encoder).eval()


class _Recurrent(nn.Module):
    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.classify = nn.Linear(hidden, classes)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(signal)
        return self.classify(states[:, -1])


class _Perceptron(nn.Module):
    def __init__(self, width: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.classify = nn.Linear(hidden, classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        state = nn.functional.gelu(self.widen(features))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            state = state + nn.functional.gelu(layer(norm(state)))
        return self.classify(state)


class _Hidden(nn.Module):
    """Returns the first output of a transformers model as a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        return self.model(input_features)[0]
