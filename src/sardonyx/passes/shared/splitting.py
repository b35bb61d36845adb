"""A Split as every operator set writes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder

SIZES_AS_INPUT_SINCE = 13


def split_into(source: ir.Value, axis: int, sizes: Sequence[int], op: Builder) -> tuple[ir.Value, ...]:
    """The parts of a value along an axis."""
    if op.scope.opset < SIZES_AS_INPUT_SINCE:
        return op.node("Split", (source,), {"axis": axis, "split": list(sizes)}, outputs=len(sizes))
    lengths = op.constant(np.array(sizes, np.int64), "sizes")
    return op.node("Split", (source, lengths), {"axis": axis}, outputs=len(sizes))
