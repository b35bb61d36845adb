"""Runs a module as it will be exported: in eval mode, without gradients, without a word on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from sardonyx.source.quiet import quietly

Probe: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any]], Exception | None]


def probe(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Run the module once, as it will be exported; the exception it answers with, if any."""
    try:
        run(module, args, kwargs)
    except Exception as error:  # a forward may raise anything, and its refusal is the answer that is asked for
        return error
    return None


def run(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The module's answer in eval mode, without gradients and without a word on the terminal."""
    with torch.no_grad(), quietly(), _evaluating(module):
        return module(*args, **kwargs)


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Generator[None]:
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True
