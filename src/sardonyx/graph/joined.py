"""Matrices side by side, as one tensor that is made when it is written: packed weights without holding them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.storage import BLOCK, Array, as_bytes, write_all
from sardonyx.graph.tensors import StreamedTensor

WHOLE = 4 * BLOCK  # bytes up to which the result is put together in memory


class JoinedTensor(StreamedTensor):
    """Tensors of equal type and first axes, joined along the last axis."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol]) -> None:
        shapes = [part.shape.numpy() for part in parts]
        assert len({(part.dtype, shape[:-1]) for part, shape in zip(parts, shapes, strict=True)}) == 1
        assert parts[0].dtype.bitwidth % 8 == 0, "sub-byte elements share bytes with their neighbours"
        super().__init__(parts[0].dtype, (*shapes[0][:-1], sum(shape[-1] for shape in shapes)))
        self.parts = tuple(parts)

    def numpy(self) -> Array:
        """The joined values, put together part by part."""
        joined = np.empty(self.shape.numpy(), self.dtype.numpy())
        start = 0
        for part in self.parts:
            end = start + part.shape.numpy()[-1]
            joined[..., start:end] = part.numpy()
            start = end
        return joined

    def write_to(self, fd: int, position: int) -> None:
        """Write the values; of large ones only one part is in memory at a time."""
        if self.nbytes <= WHOLE:
            super().write_to(fd, position)
            return
        item = self.dtype.bitwidth // 8
        stride = self.shape.numpy()[-1] * item
        for part in self.parts:
            width = part.shape.numpy()[-1]
            rows = part.numpy().reshape(-1, width)
            for index, row in enumerate(rows):
                write_all(fd, as_bytes(row), position + index * stride)
            position += width * item
