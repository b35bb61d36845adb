"""The live module as an engine: what the exported model has to agree with."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import RuntimeFailure, reason
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.hidden_rows import UnattendedRows
from sardonyx.frontend.widening import Widening, widen, widened_copy
from sardonyx.runtime import Array, Choice, Feeds, Value

# A module that computes in double precision without a second copy of its weights.


def widened_in_turn(module: nn.Module) -> nn.Module:
    """A copy that shares the module's weights; each part has its own in double precision while it runs, and no longer.

    A part whose weights another part reads without calling it computes with single ones there, or refuses to.
    """
    everything: list[Tensor] = [*module.parameters(), *module.buffers()]
    shared = copy.deepcopy(module, {id(tensor): tensor for tensor in everything})
    for part in shared.modules():
        if any(tensor.is_floating_point() for tensor in _own(part).values()):
            widening = _Widening()
            part.register_forward_pre_hook(widening.before)
            part.register_forward_hook(widening.after, always_call=True)
    return shared


def widened_whole(module: nn.Module) -> nn.Module:
    """A copy with all weights in double precision."""
    return copy.deepcopy(module).double()


class _Widening:
    """What a part had before it was called; a part may call itself."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Tensor]] = []

    def before(self, part: nn.Module, _given: object) -> None:
        """Put double precision in the place of the part's own weights."""
        own = _own(part)
        self._kept.append(own)
        for name, tensor in own.items():
            if tensor.is_floating_point():
                _put(part, name, tensor.detach().double())

    def after(self, part: nn.Module, _given: object, _answer: object) -> None:
        """Give the part its own back."""
        for name, tensor in self._kept.pop().items():
            _put(part, name, tensor)


def _own(part: nn.Module) -> dict[str, Tensor]:
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]  # the named ones skip twins
    return {name: tensor for table in tables for name, tensor in table.items() if isinstance(tensor, torch.Tensor)}


def _put(part: nn.Module, name: str, tensor: Tensor) -> None:
    """Bypass the module, which wants a parameter where there was one."""
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]
    next(table for table in tables if name in table)[name] = tensor


# A module that orders equal scores by index, and what it chooses by score.
#
# `torch.topk` and `torch.sort` leave open in which order equal scores come; TopK of ONNX takes the lower index first.
# Run
# with that rule, a module gives the one answer that both definitions allow.

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


class TorchEngine:
    """A module that takes and gives arrays, under the names its exported graph has.

    Args:
        call: the module and its example inputs.
        in_float32: compute in float32 what the module computes in float16 or bfloat16, by a copy of it.
        ordered: order equal scores by index, as the operators of ONNX do; torch leaves their order open.
    """

    def __init__(self, call: Call, *, in_float32: bool = False, ordered: bool = False) -> None:
        self._call = call.with_module(widened_copy(call.module)) if in_float32 else call
        self._in_float32, self._ordered = in_float32, ordered
        self._dtypes = [tensor.dtype for tensor in call.tensors]

    @property
    def name(self) -> str:
        """Torch, its version and how the module runs."""
        mode = "train" if self._call.module.training else "eval"
        return f"PyTorch {torch.__version__}, {mode} mode{', in float32' if self._in_float32 else ''}"

    def run(self, feeds: Feeds) -> list[Value]:
        """All outputs in the order of the graph's."""
        return self._run(feeds, self._order())

    def run_unattended(self, feeds: Feeds) -> tuple[list[Value], frozenset[int]] | None:
        """All outputs with other numbers in attention rows that see no key, and how long the sequences are.

        None if every row sees a key.
        """
        with UnattendedRows() as rows:
            outputs = self.run(feeds)
        return (outputs, frozenset(rows.lengths)) if rows.found else None

    def choices(self, feeds: Feeds) -> list[Choice]:
        """The scores and indices of everything that the module chooses by score."""
        order = IndexOrder()
        self._run(feeds, order)
        return [Choice(to_array(scores), axis, to_array(indices)) for scores, axis, indices in order.choices]

    def run_shuffled(self, feeds: Feeds, sample: int) -> list[Value] | None:
        """All outputs with scores that are equal but for rounding in a random order; None if nothing is chosen."""
        order = IndexOrder(sample)
        outputs = self._run(feeds, order)
        return outputs if order.choices else None

    def _run(self, feeds: Feeds, mode: contextlib.AbstractContextManager[object]) -> list[Value]:
        tensors = self._tensors(feeds)
        widening = Widening() if self._in_float32 else contextlib.nullcontext()
        try:
            with mode, widening:
                return [to_array(tensor) for tensor in self._call.run(tensors)]
        except Exception as error:  # a forward is the user's code and may fail in any way
            raise RuntimeFailure(f"the module does not take these inputs: {reason(error)}") from error

    def _order(self) -> contextlib.AbstractContextManager[object]:
        return IndexOrder() if self._ordered else contextlib.nullcontext()

    def run_in_double(self, feeds: Feeds) -> list[Value] | None:
        """All outputs, computed in double precision by a copy of the module; None where it cannot."""
        for widened in (widened_in_turn, widened_whole):
            try:
                precise = self._call.with_module(widened(self._call.module))
                doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in self._tensors(feeds)]
                with self._order():
                    return [to_array(tensor) for tensor in precise.run(doubled)]
            except Exception:  # the module's own code may insist on its types, and then nothing is known
                continue
        return None

    def _tensors(self, feeds: Feeds) -> list[torch.Tensor]:
        given = zip(self._call.inputs, self._dtypes, strict=True)
        tensors = (_tensor(feeds[name], dtype) for name, dtype in given)
        return [widen(tensor) if self._in_float32 else tensor for tensor in tensors]


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor's values as numpy holds them."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.resolve_conj().resolve_neg().numpy()


def _tensor(value: Value, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own: a module may write into what it is given."""
    array = np.array(value)
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)  # pyright: ignore[reportUnknownMemberType]
    return torch.from_numpy(array).to(dtype)  # pyright: ignore[reportUnknownMemberType]  # torch's own gap
