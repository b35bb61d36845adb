"""A model of any number of nodes: handmade transformer layers with the redundancies that exporters leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
OPSET = 18
_SHARED = {
    "two": np.float32(2.0),
    "epsilon": np.float32(1e-5),
    "scale": np.float32(0.5),
    "axis": np.array([-1], np.int64),
}


def deep_model(nodes: int) -> onnx.ModelProto:
    """A model with at least that many computing nodes, about 35 per layer, whose scoped names give the modules."""
    sketch = _Sketch()
    value = "x"
    while len(sketch.nodes) < nodes:
        value = sketch.layer(value)
    sketch.nodes.append(helper.make_node("Identity", [value], ["y"], name="/model/Identity"))
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, WIDTH])] for name in "xy")
    graph = helper.make_graph(sketch.nodes, "deep", inputs, outputs, sketch.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


class _Sketch:
    """A graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights = [numpy_helper.from_array(value, name) for name, value in _SHARED.items()]
        self.random = np.random.default_rng(0)
        self.layers = 0

    def layer(self, x: str) -> str:
        """Attention, a decomposed norm, two linear layers."""
        path = f"/model/layers.{self.layers}"
        self.layers += 1
        query, key, value = (self._linear(f"{path}/attention/{part}", x) for part in ("query", "key", "value"))
        turned = self._node(f"{path}/attention", "Transpose", key, perm=[0, 2, 1])
        scores = self._node(f"{path}/attention", "MatMul", query, turned)
        weighed = self._node(f"{path}/attention", "Softmax", self._node(f"{path}/attention", "Mul", scores, "scale"))
        mixed = self._node(f"{path}/attention/mix", "MatMul", weighed, value)
        kept = self._node(f"{path}/attention/dropout", "Identity", self._linear(f"{path}/attention/out", mixed))
        residual = self._node(f"{path}/attention", "Add", kept, x)
        up = self._linear(f"{path}/mlp/up", self._norm(f"{path}/norm", residual))
        down = self._linear(f"{path}/mlp/down", self._node(f"{path}/mlp/act", "Relu", up))
        return self._node(f"{path}/mlp", "Add", down, residual)

    def _node(self, module: str, op_type: str, *inputs: str, suffix: str = "", **attributes: Any) -> str:
        name = f"{module}/{op_type}{suffix}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_output"], name=name, **attributes))
        return f"{name}_output"

    def _weight(self, name: str, *shape: int) -> str:
        self.weights.append(numpy_helper.from_array(self.random.normal(scale=0.4, size=shape).astype("f4"), name))
        return name

    def _linear(self, module: str, x: str) -> str:
        turned = self._node(module, "Transpose", self._weight(f"{module}.weight", WIDTH, WIDTH), perm=[1, 0])
        return self._node(module, "Add", self._node(module, "MatMul", x, turned), self._weight(f"{module}.bias", WIDTH))

    def _norm(self, module: str, x: str) -> str:
        centred = self._node(module, "Sub", x, self._node(module, "ReduceMean", x, "axis"))
        square = self._node(module, "Pow", centred, "two")
        variance = self._node(module, "ReduceMean", square, "axis", suffix="_1")
        root = self._node(module, "Sqrt", self._node(module, "Add", variance, "epsilon"))
        scaled = self._node(module, "Mul", self._node(module, "Div", centred, root), self._weight(f"{module}.w", WIDTH))
        return self._node(module, "Add", scaled, self._weight(f"{module}.b", WIDTH), suffix="_1")
