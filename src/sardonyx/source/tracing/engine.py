"""The live module as an engine: what the exported model has to agree with."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import Array, Choice, Feeds, Value
from sardonyx.source.tracing.adapter import Call
from sardonyx.source.tracing.index_order import IndexOrder
from sardonyx.source.tracing.precise import widened_in_turn, widened_whole
from sardonyx.source.tracing.unattended import UnattendedRows
from sardonyx.source.widening import Widening, widen, widened_copy
from sardonyx.source.words import reason


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
