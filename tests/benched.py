"""Small models to time: a product, an equivalent form of it, and files that cannot be timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

PRODUCT = "y = MatMul(x, w)"
SLOWER = "a = MatMul(x, w) b = Tanh(a) c = Atanh(b) d = Sub(c, a) e = Mul(d, z) y = Add(a, e)"
OTHER = "a = MatMul(x, w) y = Neg(a)"


def written(path: Path, body: str = PRODUCT, inputs: str = "float[batch, seq, 8] x") -> Path:
    """A file with this body between x and y."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[batch, seq, 4] y) {{ {body} }}'
    )
    weights = np.linspace(-0.1, 0.1, 32, dtype=np.float32).reshape(8, 4)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), np.float32), "z"))
    onnx.save(proto, path)
    return path
