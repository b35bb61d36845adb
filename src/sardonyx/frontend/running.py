"""Runs a module as it will be exported: in eval mode, without gradients, without a word on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from sardonyx.errors import ModelError, reason
from sardonyx.frontend.module_state import is_lazy, left_as_it_was, uncompiled, undoing_writes
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.widening import Widening, lacks_kernel, widen, widened_copy

Probe: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any]], Exception | None]


def probe(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Run the module once, as it will be exported; the exception it answers with, if any."""
    try:
        run_widened_if_needed(module, args, kwargs)
    except Exception as error:  # a forward may raise anything, and its refusal is the answer that is asked for
        return error
    return None


def run_widened_if_needed(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The module's answer; in float32 where this machine has no kernel for half precision: the exporters need none."""
    try:
        return run(module, args, kwargs)
    except Exception as error:  # as above
        if not lacks_kernel(error):
            raise
    given = [widen(each) if isinstance(each, torch.Tensor) else each for each in args]
    named = {name: widen(each) if isinstance(each, torch.Tensor) else each for name, each in kwargs.items()}
    with Widening():
        return run(widened_copy(module), given, named)


def run(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The module's answer in eval mode, without gradients and without a word on the terminal; nothing of it changes."""
    with left_as_it_was(module), undoing_writes(module), uncompiled(), torch.no_grad(), quietly():
        evaluate(module)
        return module(*args, **kwargs)


def evaluate(module: nn.Module) -> None:
    """Eval mode for every module, without the methods that set it: some modules refuse or override them."""
    for each in module.modules():
        if getattr(each, "training", False):
            each.training = False


def initialize(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Give lazy modules their sizes by running the module once; a note where there are any.

    The parameters are new objects, which stay when the caller's are lazy again.

    Raises:
        ModelError: the module does not run on these inputs.
    """
    if not has_lazy(module):
        return ()
    try:
        with undoing_writes(module), uncompiled(), torch.no_grad(), quietly():
            module(*args, **kwargs)
    except Exception as error:  # a forward may raise anything
        kind = type(module).__name__
        raise ModelError(
            f"{kind} does not run on these inputs: {reason(error)}", hint="check their types and sizes"
        ) from error
    for each in module.modules():
        for name, parameter in each.named_parameters(recurse=False):
            each._parameters[name] = nn.Parameter(parameter.data, parameter.requires_grad)  # pyright: ignore[reportPrivateUsage]  # hooks must not run
    return ("lazy modules got their sizes and random weights from these inputs, and are lazy still for the caller",)


def has_lazy(module: nn.Module) -> bool:
    """Whether some parameter or buffer has no shape before the first call."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))
