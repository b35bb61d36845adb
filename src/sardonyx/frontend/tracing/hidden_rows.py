"""Runs a module with random numbers in attention rows whose keys are all masked.

A softmax over no keys is undefined: kernels return zeros, the mean of all values, or NaN. A run with other numbers in
those rows shows which outputs depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SOFTMAX = ("_softmax", "_safe_softmax")
_FUSED = "_scaled_dot_product"  # prefix of the kernels of scaled_dot_product_attention
_MASKS = ("attn_mask", "attn_bias")  # their names for the mask


class UnattendedRows(TorchDispatchMode):
    """Replaces the result of every attention row whose keys are all masked.

    Attributes:
        found: Whether there was such a row.
        lengths: Numbers of queries and keys of the attentions with such rows.
    """

    supports_higher_order_operators = True  # branches and loops are run as they are

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] torch leaves its argument untyped
        self.found = False
        self.lengths: set[int] = set()
        self._generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation, then replace the rows."""
        result, name = func(*args, **(kwargs or {})), func.__name__.partition(".")[0]
        if name in _SOFTMAX:
            hidden = _hidden(args[0]).all(args[1], keepdim=True)
            return self._replaced(result, hidden, args[0].shape[-2:]) if bool(hidden.any()) else result
        if name.startswith(_FUSED) and (mask := _mask(func, args, kwargs or {})) is not None:
            hidden = _hidden(mask).all(-1, keepdim=True)
            if bool(hidden.any()):
                lengths = (args[0].shape[-2], args[1].shape[-2])
                return (self._replaced(result[0], hidden, lengths), *result[1:])
        return result

    def _replaced(self, rows: Tensor, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        self.found = True
        self.lengths.update(lengths)
        other = torch.randn(rows.shape, generator=self._generator).to(rows.device, rows.dtype)
        return torch.where(hidden, other, rows)


def _hidden(scores: Tensor) -> Tensor:
    """Return where a key is masked: False, -inf, or a score near the lowest number of its type."""
    return ~scores if scores.dtype is torch.bool else scores <= torch.finfo(scores.dtype).min / 2


def _mask(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the mask argument of a fused attention; None if it has none."""
    names = [argument.name for argument in func._schema.arguments]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    return next((arguments[name] for name in _MASKS if isinstance(arguments.get(name), Tensor)), None)
