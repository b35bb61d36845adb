"""Runs a module as it is exported: in eval mode, without gradients and without terminal output."""

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
    """Run the module once, as it is exported. Return the exception it raises, or None."""
    try:
        run_widened_if_needed(module, args, kwargs)
    except Exception as error:  # a forward may raise anything; the caller wants to know
        return error
    return None


def run_widened_if_needed(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the module's result; computed in float32 if there is no half-precision kernel (exporters need none)."""
    try:
        return run(module, args, kwargs)
    except Exception as error:  # as above
        if not lacks_kernel(error):
            raise
    wide_args = [widen(value) if isinstance(value, torch.Tensor) else value for value in args]
    wide_kwargs = {name: widen(value) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}
    with Widening():
        return run(widened_copy(module), wide_args, wide_kwargs)


def run(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the module's result in eval mode, without gradients and terminal output; its state is restored."""
    with left_as_it_was(module), undoing_writes(module), uncompiled(), torch.no_grad(), quietly():
        evaluate(module)
        return module(*args, **kwargs)


def evaluate(module: nn.Module) -> None:
    """Set eval mode on every module without calling `eval()`, which some modules override or refuse."""
    for child in module.modules():
        if getattr(child, "training", False):
            child.training = False


def initialize(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Initialize lazy modules by running the module once; return a note if there are any.

    The initialized parameters are new objects: they stay when the caller's parameters are restored to lazy ones.

    Raises:
        ModelError: If the module does not run on these inputs.
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
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            child._parameters[name] = nn.Parameter(parameter.data, parameter.requires_grad)  # pyright: ignore[reportPrivateUsage]  # hooks must not run
    return ("lazy modules were initialized with random weights for these inputs; the caller's stay lazy",)


def has_lazy(module: nn.Module) -> bool:
    """Return whether a parameter or buffer has no shape before the first call."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))
