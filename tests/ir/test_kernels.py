"""The table of kernels agrees with the installed runtime."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.checks import KERNELS
from sardonyx.runtime import Session

_D = ir.DataType
TYPES = (
    _D.FLOAT16, _D.BFLOAT16, _D.FLOAT, _D.DOUBLE, _D.BOOL,
    _D.INT8, _D.INT16, _D.INT32, _D.INT64, _D.UINT8, _D.UINT16, _D.UINT32, _D.UINT64,
)  # fmt: skip
PAIR, MATRIX, STATES = [2], [2, 2], [1, 2, 4]
SHAPES: dict[str, list[list[int]]] = {  # of the operands of that element type; a pair where none are given
    **{name: [PAIR, PAIR] for name in ("Add", "Div", "Mul", "Sub", "Max", "Min", "Equal", "Where")},
    "Clip": [PAIR, [], []],
    **{name: [MATRIX, MATRIX] for name in ("MatMul", "com.microsoft::FusedMatMul")},
    **{name: [MATRIX, MATRIX, PAIR] for name in ("Gemm", "com.microsoft::FusedGemm")},
    **{name: [[1, 1, 3], [1, 1, 1], [1]] for name in ("Conv", "ConvTranspose", "com.microsoft::FusedConv")},
    "LayerNormalization": [MATRIX, PAIR, PAIR],
    "RMSNormalization": [MATRIX, PAIR],
    "Attention": [[1, 1, 2, 4]] * 3,
    "RotaryEmbedding": [[1, 1, 2, 4], [1, 2, 2], [1, 2, 2]],
    **{name: [MATRIX, PAIR] for name in ("com.microsoft::BiasGelu", "com.microsoft::FastGelu")},
    "com.microsoft::SkipLayerNormalization": [STATES, STATES, [4]],
    "com.microsoft::SkipSimplifiedLayerNormalization": [STATES, STATES, [4]],
    "com.microsoft::Attention": [STATES, [4, 12], [12]],
    "com.microsoft::MultiHeadAttention": [STATES, STATES, STATES],
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "com.microsoft::FusedGemm": {"activation": "Relu"},
    "com.microsoft::FusedConv": {"activation": "Relu"},
    "com.microsoft::Attention": {"num_heads": 1},
    "com.microsoft::MultiHeadAttention": {"num_heads": 1},
}
BEFORE: dict[str, tuple[_D, list[int]]] = {"Where": (_D.BOOL, PAIR)}
AFTER: dict[str, tuple[_D, list[int]]] = {"Expand": (_D.INT64, [1]), "Pad": (_D.INT64, PAIR)}


def model(operator: str, dtype: ir.DataType) -> onnx.ModelProto:
    """One node."""
    operands = [(dtype, shape) for shape in SHAPES.get(operator, [PAIR])]
    operands = [*([BEFORE[operator]] if operator in BEFORE else []), *operands]
    operands += [AFTER[operator]] if operator in AFTER else []
    inputs = [helper.make_tensor_value_info(f"x{i}", each.value, shape) for i, (each, shape) in enumerate(operands)]
    domain, _, op_type = operator.rpartition("::")
    names = [value.name for value in inputs]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **ATTRIBUTES.get(operator, {}))
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info("y")])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("operator", sorted(KERNELS))
def test_the_runtime_has_these_kernels_and_no_others(operator: str) -> None:
    loaded: set[ir.DataType] = set()
    for dtype in TYPES:
        try:
            Session(model(operator, dtype), threads=1)
        except RuntimeFailure:
            continue
        loaded.add(dtype)
    assert loaded == KERNELS[operator] - {_D.STRING}
