"""What tracing and recording change for a while and take back, whatever happens: forward passes, what modules hold."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_COUNTED = 4096  # elements of a buffer that a forward may change in place; tables that it reads are longer


@contextmanager
def replaced(forwards: Mapping[type[nn.Module], Callable[..., Any]]) -> Generator[None]:
    """Other forward passes on the classes, for a while."""
    before = {layer: layer.forward for layer in forwards}
    try:
        for layer, forward in forwards.items():
            layer.forward = forward
        yield
    finally:
        for layer, forward in before.items():
            layer.forward = forward


@contextmanager
def left_as_it_was(model: nn.Module) -> Generator[None]:
    """Take back what a run leaves on the modules: constants that torch puts there, values that a forward stores.

    Buffers are not traced but read as they are, so a forward that counts in one counts while it is traced or recorded.
    """
    held = [holder for module in model.modules() for holder in _holders(module)]
    before = [dict(holder) for holder in held]
    short = [buffer for buffer in model.buffers() if buffer.numel() <= _COUNTED and not buffer.is_inference()]
    counters = [(buffer, buffer._version, buffer.clone()) for buffer in short]
    try:
        yield
    finally:
        for holder, content in zip(held, before, strict=True):
            if len(holder) != len(content) or not all(map(operator.is_, holder.values(), content.values())):
                holder.clear()
                holder.update(content)
        with torch.no_grad():
            for buffer, version, content in counters:
                if buffer._version != version:
                    buffer.copy_(content)


def _holders(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """The dictionaries that a module keeps its attributes in."""
    own = vars(module)
    return own, own["_parameters"], own["_buffers"], own["_modules"]
