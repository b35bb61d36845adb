"""Runs a module as it is exported: in eval mode, without gradients and without terminal output.

A half-precision module can be run in float32 on its stored weights: rounding in float16 or bfloat16 hides whether two
programs compute the same function, and a CPU has no kernel for some operators in those types.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sardonyx.errors import ModelError, reason
from sardonyx.frontend.module_state import is_lazy, unchanged, uncompiled, undoing_writes
from sardonyx.frontend.quiet import quietly

Probe: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any]], Exception | None]
HALF_TYPES = (torch.float16, torch.bfloat16)
_TO_NARROW = (Tensor.half, Tensor.bfloat16)
_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16)'")


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


def run(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, keep_modes: bool = False) -> Any:
    """Return the module's result in eval mode, without gradients and terminal output; its state is restored.

    With `keep_modes`, every module stays in the mode that it is in.
    """
    with unchanged(module), uncompiled(), torch.no_grad(), quietly():
        if not keep_modes:
            evaluate(module)
        return module(*args, **kwargs)


@contextlib.contextmanager
def with_threads(count: int | None) -> Generator[None]:
    """Run modules on so many threads; None keeps torch's number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluate(module: nn.Module) -> None:
    """Set eval mode on every module."""
    set_training(module, training=False)


def set_training(module: nn.Module, *, training: bool) -> None:
    """Set the mode of every module without calling `train()`, which some modules override or refuse."""
    for child in module.modules():
        if getattr(child, "training", training) != training:
            child.training = training


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


def widened_copy(module: nn.Module) -> nn.Module:
    """Return a copy whose float16 and bfloat16 parameters and buffers are float32."""
    twin: Any = copy.deepcopy(module)
    return twin._apply(widen)  # .float() uses the same method


def widen(tensor: Tensor) -> Tensor:
    """Return a float16 or bfloat16 tensor in float32, and any other unchanged."""
    return tensor.float() if tensor.dtype in HALF_TYPES else tensor


class Widening(TorchFunctionMode):
    """While active, float16 and bfloat16 in a forward's calls are replaced by float32, and autocast has no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func is Tensor.view:  # reinterprets the bits, so the type must stay
            return func(*args, **named)
        func = Tensor.float if func in _TO_NARROW else func
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else contextlib.nullcontext():
            return func(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})


def _wide(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_TYPES else value


def lacks_kernel(error: BaseException) -> bool:
    """Return whether the error only says that there is no kernel in half precision."""
    return _NO_KERNEL.search(str(error)) is not None
