"""The live module as an engine: what the exported model has to agree with."""

from __future__ import annotations

import torch

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.source.adapter import Call
from sardonyx.source.quiet import quietly
from sardonyx.source.words import reason


class TorchEngine:
    """A module that takes and gives arrays, under the names its exported graph has."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def name(self) -> str:
        """Torch, its version and how the module runs."""
        return f"PyTorch {torch.__version__}, {'train' if self._call.module.training else 'eval'} mode"

    def run(self, feeds: Feeds) -> list[Value]:
        """All outputs in the order of the graph's."""
        tensors = [_tensor(feeds[name], like) for name, like in zip(self._call.inputs, self._call.tensors, strict=True)]
        try:
            with torch.no_grad(), quietly():
                return [to_array(tensor) for tensor in self._call(tensors)]
        except Exception as error:  # a forward is the user's code and may fail in any way
            raise RuntimeFailure(f"the module does not take these inputs: {reason(error)}") from error


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor's values as numpy holds them."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.resolve_conj().resolve_neg().numpy()


def _tensor(value: Value, like: torch.Tensor) -> torch.Tensor:
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(value.view("int16").copy()).view(torch.bfloat16)  # pyright: ignore  # an array here
    return torch.as_tensor(value, dtype=like.dtype)  # pyright: ignore[reportUnknownMemberType]  # torch's own gap
