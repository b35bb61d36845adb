"""Whether this CPU adds pairs of 8-bit products with saturation, as some x86 CPUs without VNNI do."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from sardonyx import runtime

REDUCED_MOST = 63  # 2 * 255 * 63 is less than 2 ** 15: sums of two products fit
_ROWS, _SUMMED, _COLUMNS = 5, 64, 32


@cache
def saturates() -> bool:
    """Return whether a product of the largest 8-bit integers is wrong on this CPU; it is computed once."""
    levels = np.full((_ROWS, _SUMMED), 255, np.uint8)
    weight = np.full((_SUMMED, _COLUMNS), 127, np.int8)
    weight[:, 1::2] = -128
    arrays = {"levels": levels, "weight": weight}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", list(arrays), ["total"])],
        "saturation",
        [],
        [onnx.helper.make_tensor_value_info("total", onnx.TensorProto.INT32, [_ROWS, _COLUMNS])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    (total,) = runtime.evaluate(model)
    return not np.array_equal(total, levels.astype(np.int32) @ weight.astype(np.int32))
