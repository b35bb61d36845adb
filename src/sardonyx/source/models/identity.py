"""A module's weights as one number, so that a record can say which weights were exported."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import nn


def named_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's parameters and buffers by name, in order."""
    yield from sorted((*module.named_parameters(), *module.named_buffers()), key=lambda pair: pair[0])


def state_sha256(module: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in named_state(module):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = _plain(tensor.detach()).cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers as they are, where they are stored in another form."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.int_repr() if dense.is_quantized else dense
