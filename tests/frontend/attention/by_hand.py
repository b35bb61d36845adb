"""Attention written by hand: one small module for each style, with inputs without zeros."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LENGTH, BATCH = 16, 4, 6, 2
HEAD = WIDTH // HEADS
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Projected(nn.Module):
    """Three input projections and one output projection; subclasses define the attention in between."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.25)
        self.softmax = nn.Softmax(dim=-1)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))
        self.temperature = nn.Parameter(torch.rand(HEADS, 1, 1) + 0.5)
        self.register_buffer("seen", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):  # no annotation: fx writes string annotations into its code and cannot read them again
        q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(BATCH, LENGTH, HEADS, HEAD).transpose(1, 2)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(HEAD), dim=-1) @ v


class Methods(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return q.matmul(k.transpose(2, 3)).mul(HEAD**-0.5).softmax(-1).matmul(v)


class Modules(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return torch.matmul(self.dropout(self.softmax(torch.matmul(q, k.mT) * 0.7)), v)


class ScaledQuery(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return F.softmax((q * 0.5) @ k.transpose(-1, -2), dim=3) @ v


class ScaledByRoots(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        root = HEAD**-0.25
        return torch.softmax((root * q) @ (k.transpose(-1, -2) * root), -1) @ v


class ComputedScale(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) * k.size(-1) ** -0.5, -1) @ v


class MaskedFill(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(HEAD))
        scores = scores.masked_fill(self.seen == 0, float("-inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ v


class FiniteFill(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.where(self.seen, q @ k.transpose(-2, -1), torch.finfo(torch.float32).min)
        return F.softmax(scores, dim=-1) @ v


class TwoFills(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose(-2, -1)).masked_fill(~self.seen, -torch.inf)
        near = torch.ones(LENGTH, LENGTH).triu(-2).bool()
        return F.softmax(scores.masked_fill(~near, -torch.inf) / 2, dim=-1) @ v


class PositionBias(Projected):
    """A position bias and no scale, in float32 for every dtype of the model."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += self.bias
        return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


class SlopedThenMasked(Projected):
    """A bias by distance, then a fill: both become one mask."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.add(self.bias, q @ k.transpose(-2, -1) * 0.3)
        return torch.softmax(scores.masked_fill(~self.seen, -1e9), -1) @ v


class Subtracted(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-2, -1) - 1e4 * (~self.seen).float()
        return torch.softmax(scores / 3, -1) @ v


class Einsum(Projected):
    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(BATCH, LENGTH, HEADS, HEAD)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.einsum("blhd,bshd->bhls", q, k) * 0.4
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v).transpose(1, 2)


class EinsumTransposed(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = torch.einsum("...jd, ...id -> ...ij", k, q)
        return torch.einsum("...ij, ...jd -> ...id", torch.softmax(scores, -1), v)


class Batched(Projected):
    """Heads merged into the batch, and split again for the mask."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (each.reshape(BATCH * HEADS, LENGTH, HEAD) for each in (q, k, v))
        scores = torch.bmm(q * 0.5, k.transpose(1, 2)).view(BATCH, HEADS, LENGTH, LENGTH) + self.bias
        weights = F.softmax(scores.view(BATCH * HEADS, LENGTH, LENGTH), dim=-1)
        return torch.bmm(F.dropout(weights, p=0.3, training=self.training), v).view(BATCH, HEADS, LENGTH, HEAD)


class Merged(Projected):
    """Heads merged into the batch, and a mask for each of them: three axes, for which torch has no fast kernel."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (each.reshape(BATCH * HEADS, LENGTH, HEAD) for each in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2)) + self.bias.unsqueeze(0).expand(BATCH, -1, -1, -1).flatten(0, 1)
        return torch.bmm(F.softmax(scores, dim=-1), v).view(BATCH, HEADS, LENGTH, HEAD)


class AddedInProduct(Projected):
    """A bias inside the product, as in models with a bias by distance."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, v = (each.reshape(BATCH * HEADS, LENGTH, HEAD) for each in (q, v))
        turned = k.permute(0, 1, 3, 2).reshape(BATCH * HEADS, HEAD, LENGTH)
        bias = self.bias.repeat(BATCH, 1, 1)
        scores = bias.baddbmm(batch1=q, batch2=turned, beta=0.5, alpha=0.25)
        weights = F.softmax(scores.view(BATCH, HEADS, LENGTH, LENGTH), dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.bmm(weights.view(BATCH * HEADS, LENGTH, LENGTH), v).view(BATCH, HEADS, LENGTH, HEAD)


class Cosine(Projected):
    """Normalised queries and keys with a learned temperature for each head."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return torch.softmax(scores * torch.clamp(self.temperature, max=4.6).exp() + self.bias, -1) @ v


class Windowed(Projected):
    """Scores of windows with a bias for all, and a mask for each window after a regrouping."""

    apart: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("apart", torch.where(torch.rand(BATCH, LENGTH, LENGTH) > 0.6, -100.0, 0.0))

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q * HEAD**-0.5) @ k.transpose(-2, -1) + self.bias.unsqueeze(0)
        scores = scores.view(1, BATCH, HEADS, LENGTH, LENGTH) + self.apart.unsqueeze(1).unsqueeze(0)
        return self.softmax(scores.view(-1, HEADS, LENGTH, LENGTH)) @ v


class SharedHeads(Projected):
    """Half of the keys and values, each for two heads of the queries."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        k, v = (each[:, :2].repeat_interleave(2, dim=1) for each in (k, v))
        return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


class SpreadHeads(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        k, v = (self.spread(each[:, :2]) for each in (k, v))
        return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v

    def spread(self, x: Any) -> Any:
        return x[:, :, None, :, :].expand(BATCH, 2, 2, LENGTH, HEAD).reshape(BATCH, HEADS, LENGTH, HEAD)


class Spread(Projected):
    """One head of keys and values for all heads of the queries, by broadcasting."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k[:, :1].transpose(-2, -1) * 0.5, -1) @ v[:, :1]


class ScaledAfterMask(Projected):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax((q @ k.transpose(-2, -1) + self.bias) * 0.25, -1) @ v


class Causal(Projected):
    """The mask is created in the forward pass and becomes `is_causal`."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-2, -1) * 0.5
        later = scores.new_ones([q.size(-2), k.size(-2)], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(later, -torch.inf), -1) @ v


WAYS: dict[str, Callable[[], Projected]] = {
    kind.__name__: kind
    for kind in (
        *(Projected, Methods, Modules, ScaledQuery, ScaledByRoots, ComputedScale, MaskedFill, FiniteFill, TwoFills),
        *(PositionBias, SlopedThenMasked, Subtracted, Einsum, EinsumTransposed, Batched, AddedInProduct, Cosine),
        *(Merged, Windowed, SharedHeads, SpreadHeads, Spread, ScaledAfterMask, Causal),
    )
}


@functools.cache
def exported(way: str) -> tuple[nn.Module, torch.Tensor, Any]:
    """The module, its input, and its graph module from torch.export (cached, since exporting is slow)."""
    module, x = built(WAYS[way])
    return module, x, torch.export.export(module, (x,), strict=False).module()


def built(kind: Callable[[], ModuleT]) -> tuple[ModuleT, torch.Tensor]:
    """The module in evaluation mode, and an input for it."""
    torch.manual_seed(7)
    module = kind().eval()
    return module, torch.randn(BATCH, LENGTH, WIDTH)
