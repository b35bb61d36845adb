"""Runs a half-precision module in float32 on its stored weights.

Rounding in float16 or bfloat16 hides whether two programs compute the same function, and a CPU has no kernel for some
operators in those types. The copy has the same weights and rounds like float32.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float16, torch.bfloat16)
_TO_NARROW = (Tensor.half, Tensor.bfloat16)
_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16)'")


def widened_copy(module: nn.Module) -> nn.Module:
    """Return a copy whose float16 and bfloat16 parameters and buffers are float32."""
    twin: Any = copy.deepcopy(module)
    return twin._apply(widen)  # .float() uses the same method


def widen(tensor: Tensor) -> Tensor:
    """Return a float16 or bfloat16 tensor in float32, and any other unchanged."""
    return tensor.float() if tensor.dtype in _NARROW else tensor


class Widening(TorchFunctionMode):
    """While active, float16 and bfloat16 in a forward's calls are replaced by float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func is Tensor.view:  # reinterprets the bits, so the type must stay
            return func(*args, **named)
        func = Tensor.float if func in _TO_NARROW else func
        return func(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})


def _wide(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in _NARROW else value


def lacks_kernel(error: BaseException) -> bool:
    """Return whether the error only says that there is no kernel in half precision."""
    return _NO_KERNEL.search(str(error)) is not None
