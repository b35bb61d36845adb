"""A module that orders equal scores by index, and what it chooses by score.

`torch.topk` and `torch.sort` leave open in which order equal scores come; TopK of ONNX takes the lower index first. Run
with that rule, a module gives the one answer that both definitions allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_LAST_DIGITS = 16.0  # units of the type's epsilon within which scores are equal but for rounding
_ATEN: Any = torch.ops.aten
_ORDERED = frozenset((_ATEN.topk.default, _ATEN.sort.default, _ATEN.sort.stable))
_FIRST = frozenset((_ATEN.argmax.default, _ATEN.argmin.default, _ATEN.max.dim, _ATEN.min.dim))  # of equal scores


class IndexOrder(TorchDispatchMode):
    """Gives topk and sort the order of the indices where scores are equal.

    Args:
        sample: If given, scores that are equal but for rounding come in a random order, another one for each number.

    Attributes:
        choices: Scores, the axis along which something was chosen, and the indices, of everything chosen so far.
    """

    supports_higher_order_operators = True  # branches and loops are run as they are

    def __init__(self, sample: int | None = None) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] torch leaves its argument untyped
        self._generator = None if sample is None else torch.Generator().manual_seed(sample)
        self.choices: list[tuple[Tensor, int, Tensor]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation, or a stable sort in its place."""
        if func in _ORDERED and args[0].dim():
            return self._sorted(_arguments(func, args, kwargs or {}))
        if func in _FIRST and args[0].dim():
            return self._first(func, _arguments(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _sorted(self, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        scores, axis = given["self"], given["dim"]
        descending = given.get("largest", given.get("descending"))
        order = torch.sort(self._shaken(scores), dim=axis, descending=descending, stable=True).indices
        indices = order.narrow(axis, 0, given.get("k", order.shape[axis])).contiguous()
        self.choices.append((scores, axis, indices))
        return scores.gather(axis, indices), indices

    def _first(self, func: Any, given: Mapping[str, Any]) -> Any:
        whole = given["dim"] is None
        scores, axis = (given["self"].flatten(), 0) if whole else (given["self"], given["dim"])
        result = func(self._shaken(scores), axis, True)
        indices = result if isinstance(result, Tensor) else result[1]
        self.choices.append((scores, axis, indices))
        chosen = [indices] if isinstance(result, Tensor) else [scores.gather(axis, indices), indices]
        if whole and given["keepdim"]:
            chosen = [each.reshape([1] * given["self"].dim()) for each in chosen]
        elif not given["keepdim"]:
            chosen = [each.squeeze(axis) for each in chosen]
        return chosen[0] if isinstance(result, Tensor) else tuple(chosen)

    def _shaken(self, scores: Tensor) -> Tensor:
        """The scores with other last digits, if asked for."""
        if self._generator is None or not scores.is_floating_point():
            return scores
        size = scores.abs().nan_to_num(0.0, 0.0, 0.0)
        noise = torch.rand(scores.shape, generator=self._generator).to(scores.device, scores.dtype) * 2 - 1
        return scores + noise * (_LAST_DIGITS * torch.finfo(scores.dtype).eps) * (size + size.mean())


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}
