"""What tracing changes for a while and takes back, whatever happens: forward passes of classes, what modules hold."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


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
    """Take back what tracing leaves on the modules: constants that torch puts there, values that a forward stores."""
    held = [holder for module in model.modules() for holder in _holders(module)]
    before = [dict(holder) for holder in held]
    try:
        yield
    finally:
        for holder, content in zip(held, before, strict=True):
            if len(holder) != len(content) or not all(map(operator.is_, holder.values(), content.values())):
                holder.clear()
                holder.update(content)


def _holders(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """The dictionaries that a module keeps its attributes in."""
    own = vars(module)
    return own, own["_parameters"], own["_buffers"], own["_modules"]
