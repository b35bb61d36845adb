"""Small modules made by hand: the arrangements of modules that no library model shows by itself."""

from __future__ import annotations

import torch
from torch import nn


class ConvolutionAndPerceptron(nn.Module):
    """Convolutions below, a perceptron above, functional code between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(8 * 7 * 7, 5), "b": nn.Linear(8 * 7 * 7, 4)})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two heads over one body."""
        flat = torch.flatten(self.features(x) * 1.5 + 0.25, 1)
        return self.heads["a"](flat), torch.sigmoid(self.heads["b"](flat))


class ConvolutionAndAttention(nn.Module):
    """A convolutional stem, attention over its positions, added back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2), nn.GELU())
        self.norm = nn.LayerNorm(24)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pooled features."""
        rows = self.stem(x).flatten(2).transpose(1, 2)
        normed = self.norm(rows)
        rows = rows + self.attention(normed, normed, normed, need_weights=False)[0]
        for layer in self.layers:
            rows = rows + torch.tanh(layer(rows))
        return rows.mean(1)


class CalledTwice(nn.Module):
    """One module, two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
        self.last = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The second call sees what the first one made."""
        return self.last(self.twice(self.twice(x) + 0.5))


class TwoNames(nn.Module):
    """One instance under two names, both called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, 12), nn.Sigmoid())
        self.middle = nn.LayerNorm(12)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both names."""
        return self.second(self.middle(self.first(x)))


class Tagger(nn.Module):
    """Embeddings, a two-way LSTM, a linear layer over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(24, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A score for every token and label."""
        return self.out(self.lstm(self.embed(ids))[0])
