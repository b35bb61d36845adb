"""Small networks made by hand for the families that model libraries have few of: perceptrons, recurrences, graphs."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def perceptron() -> nn.Module:
    """Plain layers."""
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))


def autoencoder() -> nn.Module:
    """Down and up again, normalised."""
    down = (nn.Linear(40, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Linear(24, 6))
    return nn.Sequential(*down, nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 40), nn.Sigmoid())


class Mixer(nn.Module):
    """Patches, then products over places and over channels in turn (an MLP-Mixer)."""

    def __init__(self, width: int = 24, patches: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.places = nn.ModuleList(self._block(patches) for _ in range(2))
        self.channels = nn.ModuleList(self._block(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _block(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        for i, (places, channels) in enumerate(zip(self.places, self.channels, strict=True)):
            rows = rows + places(self.norms[2 * i](rows).transpose(1, 2)).transpose(1, 2)
            rows = rows + channels(self.norms[2 * i + 1](rows))
        return self.head(rows.mean(1))


class Gated(nn.Module):
    """Token embeddings and products over places that gate (a gMLP)."""

    def __init__(self, width: int = 24, length: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.widen = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        self.mix = nn.ModuleList(nn.Conv1d(length, length, 1) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """States of the tokens."""
        rows = self.embed(ids)
        for norm, widen, mix, narrow in zip(self.norms, self.widen, self.mix, self.narrow, strict=True):
            value, gate = torch.nn.functional.gelu(widen(norm(rows))).chunk(2, -1)
            rows = rows + narrow(value * mix(gate))
        return rows


class Recommender(nn.Module):
    """Embeddings of categories beside plain numbers, and a perceptron over both."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(3))
        self.numbers = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 1), nn.Sigmoid())

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """A probability."""
        looked_up = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat([self.numbers(numbers), *looked_up], 1))


class States(nn.Module):
    """A recurrence over tokens or vectors, and a linear layer over its states."""

    def __init__(self, kind: type[nn.RNNBase], *, tokens: bool, convolved: bool = False, **how: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 16) if tokens else nn.Linear(10, 16)
        self.convolve = nn.Sequential(nn.Conv1d(16, 16, 5, 2), nn.ReLU()) if convolved else None
        self.recur = kind(16, 12, batch_first=True, **how)
        self.out = nn.LazyLinear(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A score for every place and label."""
        rows = self.embed(x)
        if self.convolve is not None:
            rows = self.convolve(rows.transpose(1, 2)).transpose(1, 2)
        return self.out(self.recur(rows)[0])


class Translator(nn.Module):
    """Two recurrences, the second started by the first."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.GRU(16, 12, batch_first=True), nn.GRU(16, 12, batch_first=True)
        self.source, self.target = nn.Embedding(96, 16), nn.Embedding(80, 16)
        self.out = nn.Linear(12, 80)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        state = self.read(self.source(source))[1]
        return self.out(self.write(self.target(target), state)[0])


class Unrolled(nn.Module):
    """A cell called for one place after another: the recurrence is spelled out in the graph."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(10, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A score after the last place."""
        state = torch.zeros(x.shape[0], 12)
        for place in range(8):
            state = self.cell(x[:, place], state)
        return self.out(state)


class Messages(nn.Module):
    """Layers over the nodes of a graph that is handed in as its adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """States of the nodes."""
        for layer in self.layers:
            x = torch.relu(adjacency @ layer(x))
        return x


class Signal(nn.Module):
    """Signal processing without a weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logarithm of the energy in pieces."""
        return torch.log1p((x.unflatten(-1, (8, -1)) ** 2).mean(-1)).cumsum(-1)


class Decoder(nn.Module):
    """torch's own decoder over a memory that is handed in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 24)
        layer = nn.TransformerDecoderLayer(24, 4, 40, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)

    def forward(self, ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """States of the tokens."""
        length = ids.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        return self.layers(self.embed(ids), memory, tgt_mask=mask)


class UShaped(nn.Module):
    """Convolutions down and up with bridges; with attention in the middle where asked for."""

    def __init__(self, *, attention: bool) -> None:
        super().__init__()
        widths = (8, 16, 24)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.join = nn.ModuleList(nn.Conv2d(2 * a, a, 3, padding=1) for a in widths[:-1])
        self.middle = nn.ModuleList(nn.MultiheadAttention(24, 4, batch_first=True) for _ in range(2 * attention))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A picture of the same size."""
        x, kept = self.first(x), []
        for down in self.down:
            kept.append(x)
            x = torch.relu(down(x))
        for attend in self.middle:
            rows = x.flatten(2).transpose(1, 2)
            x = x + attend(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = torch.relu(join(torch.cat([up(x), kept.pop()], 1)))
        return x
