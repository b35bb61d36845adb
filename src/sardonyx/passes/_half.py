"""Where ONNX Runtime has a value of half precision in half precision in fact.

It computes operators without a kernel for half precision in single precision, between Casts that it inserts. Where two
such operators follow each other it takes the Casts between them away, and even a Cast of the model's own: the rounding
to half precision is then left out. A node that does nothing between them is what keeps it, overflows included.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.facts import Facts

# Operators with a kernel for half precision in ONNX Runtime 1.31; Cast is one that the runtime may take away.
_KERNELS = frozenset(
    {
        "Add", "Attention", "Clip", "Concat", "Conv", "Div", "Expand", "Flatten", "Gather", "Gemm", "Identity",
        "LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "RMSNormalization", "Relu",
        "Reshape", "RotaryEmbedding", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def is_rounded(value: ir.Value | None, graph: Facts) -> bool:
    """Whether the runtime certainly rounds the value to the type that it has."""
    if value is None or graph.dtype(value) != ir.DataType.FLOAT16:
        return True
    node = value.producer()
    return node is None or node.op_type in _KERNELS
