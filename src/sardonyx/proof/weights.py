"""Which stored weights of a file are not those of the module it is compared with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from sardonyx.runtime import Array


def other_weights(model: ir.Model, weights: Iterable[tuple[str, Array]]) -> list[str]:
    """Names of the weights that the file stores under the same name and shape, with other values.

    A weight that the file does not have by name, because a rewrite or an exporter changed it, says nothing.

    Args:
        model: the file.
        weights: those of a module, by name.
    """
    stored = model.graph.initializers
    return [name for name, array in weights if name in stored and _differs(stored[name].const_value, array)]


def _differs(stored: ir.TensorProtocol | None, array: Array) -> bool:
    if stored is None or tuple(stored.shape.numpy()) != array.shape:
        return False
    values = stored.numpy()
    return not np.array_equal(values, array.astype(values.dtype))
