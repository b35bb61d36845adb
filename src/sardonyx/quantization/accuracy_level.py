"""The accuracy level of MatMulNBits that is fastest on this machine: float32 activations, or 8-bit ones in blocks."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from sardonyx.runtime import Session

FLOAT32, INT8 = 1, 4
_ROWS = (1, 16, 128)  # of activations
_WIDTH = 512  # of the weight, in both directions
_RUNS = 5


@cache
def fastest_level(bits: int, size: int) -> int:
    """Return FLOAT32 if it is faster for every number of rows, because it loses less, otherwise INT8."""
    sessions = {level: Session(_product(bits, size, level), optimize=True, threads=1) for level in (FLOAT32, INT8)}
    measured = [_seconds(sessions, rows) for rows in _ROWS]
    return FLOAT32 if all(seconds[FLOAT32] < seconds[INT8] for seconds in measured) else INT8


def _seconds(sessions: dict[int, Session], rows: int) -> dict[int, float]:
    """Return the least time of a few interleaved runs of each."""
    feeds = {"x": np.ones((rows, _WIDTH), np.float32)}
    best = dict.fromkeys(sessions, np.inf)
    for _ in range(_RUNS):
        for level, session in sessions.items():
            began = time.perf_counter()
            session.run(feeds)
            best[level] = min(best[level], time.perf_counter() - began)
    return best


def _product(bits: int, size: int, level: int) -> onnx.ModelProto:
    """Return one product with a weight of random integers."""
    blocks, rng = _WIDTH // size, np.random.default_rng(0)
    arrays = {
        "weight": rng.integers(0, 256, (_WIDTH, blocks, size * bits // 8), np.uint8),
        "scales": np.ones((_WIDTH, blocks), np.float32),
        "zeros": rng.integers(0, 256, (_WIDTH, blocks * bits // 8), np.uint8),
    }
    attributes: dict[str, Any] = {"K": _WIDTH, "N": _WIDTH, "bits": bits, "block_size": size, "accuracy_level": level}
    node = onnx.helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **attributes)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", _WIDTH]) for name in "xy")
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "product", [x], [y], constants)
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
