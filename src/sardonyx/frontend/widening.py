"""A module of half precision computed in single precision: its weights as they are, every operation in float32.

What rounds in float16 or bfloat16 says little about whether two programs are the same function, and a CPU has no kernel
for some operators in those types. The copy has the same values and rounds like float32.
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
    """A copy whose parameters and buffers of float16 and bfloat16 are float32."""
    twin: Any = copy.deepcopy(module)
    return twin._apply(widen)  # what .float() is made of


def widen(tensor: Tensor) -> Tensor:
    """The tensor in float32 where it is narrower, otherwise as it is."""
    return tensor.float() if tensor.dtype in _NARROW else tensor


class Widening(TorchFunctionMode):
    """While active, what a forward asks for in float16 or bfloat16 is float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func is Tensor.view:  # the same bits, which are of the type that is named
            return func(*args, **named)
        func = Tensor.float if func in _TO_NARROW else func
        return func(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})


def _wide(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in _NARROW else value


def lacks_kernel(error: BaseException) -> bool:
    """Whether torch refused only because this machine has no kernel in half precision."""
    return _NO_KERNEL.search(str(error)) is not None
