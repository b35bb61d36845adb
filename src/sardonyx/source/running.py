"""Runs a module as it will be exported: in eval mode, without gradients, without a word on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from sardonyx.source.quiet import quietly
from sardonyx.source.widening import Widening, lacks_kernel, widen, widened_copy

Probe: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any]], Exception | None]


def probe(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Run the module once, as it will be exported; the exception it answers with, if any."""
    try:
        run(module, args, kwargs)
    except Exception as error:  # a forward may raise anything, and its refusal is the answer that is asked for
        return _probe_widened(module, args, kwargs) if lacks_kernel(error) else error
    return None


def _probe_widened(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """The same in float32, where this machine has no kernel for half precision: the exporters need none."""
    given = [widen(each) if isinstance(each, torch.Tensor) else each for each in args]
    named = {name: widen(each) if isinstance(each, torch.Tensor) else each for name, each in kwargs.items()}
    try:
        with Widening():
            run(widened_copy(module), given, named)
    except Exception as error:  # as above
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
