"""Models from ONNX text, with weights, for the tests of verification."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper


def text_model(body: str, opset: int = 18, ir_version: int = 9, /, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from the text of its graph, with these initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]>\n{body}')
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return proto


def array(value: object) -> np.ndarray:
    """The value, which must be an array."""
    assert isinstance(value, np.ndarray)
    return value
