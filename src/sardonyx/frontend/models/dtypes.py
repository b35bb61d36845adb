"""A module and its example inputs in another floating-point type."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator
from typing import TypeVar

import torch
from torch import nn

from sardonyx.frontend.models.sources import Dtype

_Module = TypeVar("_Module", bound=nn.Module)


def torch_dtype(dtype: Dtype) -> torch.dtype | None:
    """The type by its name; None to keep what is there."""
    return None if dtype == "keep" else getattr(torch, dtype)


def converted(module: _Module, dtype: Dtype) -> _Module:
    """The module with its floating-point parameters and buffers in this type, in place."""
    kind = torch_dtype(dtype)
    return module if kind is None else module.to(kind)


def converted_copy(module: nn.Module, dtype: Dtype) -> nn.Module:
    """The same by a copy, where a type is asked for."""
    return module if dtype == "keep" else converted(copy.deepcopy(module), dtype)


def converted_tensor(tensor: torch.Tensor, dtype: Dtype) -> torch.Tensor:
    """A floating-point tensor in this type, and any other as it is."""
    kind = torch_dtype(dtype)
    return tensor if kind is None or not tensor.is_floating_point() else tensor.to(kind)


@contextlib.contextmanager
def default_dtype(dtype: Dtype) -> Generator[None]:
    """Modules built inside have this type, but for what they build in a type of their own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch_dtype(dtype) or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
