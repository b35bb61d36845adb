"""A module that computes in double precision without a second copy of its weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def widened_in_turn(module: nn.Module) -> nn.Module:
    """A copy that shares the module's weights; each part has its own in double precision while it runs, and no longer.

    A part whose weights another part reads without calling it computes with single ones there, or refuses to.
    """
    everything: list[Tensor] = [*module.parameters(), *module.buffers()]
    shared = copy.deepcopy(module, {id(tensor): tensor for tensor in everything})
    for part in shared.modules():
        if any(tensor.is_floating_point() for tensor in _own(part).values()):
            widening = _Widening()
            part.register_forward_pre_hook(widening.before)
            part.register_forward_hook(widening.after, always_call=True)
    return shared


def widened_whole(module: nn.Module) -> nn.Module:
    """A copy with all weights in double precision."""
    return copy.deepcopy(module).double()


class _Widening:
    """What a part had before it was called; a part may call itself."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Tensor]] = []

    def before(self, part: nn.Module, _given: object) -> None:
        """Put double precision in the place of the part's own weights."""
        own = _own(part)
        self._kept.append(own)
        for name, tensor in own.items():
            if tensor.is_floating_point():
                _put(part, name, tensor.detach().double())

    def after(self, part: nn.Module, _given: object, _answer: object) -> None:
        """Give the part its own back."""
        for name, tensor in self._kept.pop().items():
            _put(part, name, tensor)


def _own(part: nn.Module) -> dict[str, Tensor]:
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]  # the named ones skip twins
    return {name: tensor for table in tables for name, tensor in table.items() if isinstance(tensor, torch.Tensor)}


def _put(part: nn.Module, name: str, tensor: Tensor) -> None:
    """Bypass the module, which wants a parameter where there was one."""
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]
    next(table for table in tables if name in table)[name] = tensor
