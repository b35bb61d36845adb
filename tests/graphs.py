"""Random small graphs: every operator that the passes rewrite, in random arrangements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
SHAPE = (2, 3, 4)
Shape = tuple[int, ...]
UNARY = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Dropout", "Cast")
BINARY = ("Add", "Mul", "Sub", "Max")


class _Sketch:
    """A graph under construction; every value has three dims, a permutation of SHAPE, and its own module."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[tuple[str, Shape]] = [("x", SHAPE), ("z", SHAPE)]

    def constant(self, array: np.ndarray) -> str:
        """A constant, as an initializer or as a node: exporters write both."""
        name = f"c{len(self.nodes)}_{len(self.initializers)}"
        tensor = numpy_helper.from_array(array, name)
        if self.draw(st.booleans()):
            self.initializers.append(tensor)
        else:
            self.node("Constant", [], name, value=tensor)
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """A node in its own module."""
        module = "".join(f"/block.{self.draw(st.integers(0, 2))}" for _ in range(self.draw(st.integers(0, 2))))
        name = f"/net{module}/part.{len(self.nodes)}/{op_type}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))

    def grow(self) -> None:
        """Add one operation on a random value of the graph."""
        steps = (self._unary, self._binary, self._arithmetic, self._transpose)
        steps += (self._reshape, self._matmul, self._folded)
        source, shape = self.draw(st.sampled_from(self.values))
        output = f"v{len(self.nodes)}"
        self.values.append((output, self.draw(st.sampled_from(steps))(source, shape, output)))

    def _unary(self, source: str, shape: Shape, output: str) -> Shape:
        op_type = self.draw(st.sampled_from(UNARY))
        self.node(op_type, [source], output, **({"to": TensorProto.FLOAT} if op_type == "Cast" else {}))
        return shape

    def _binary(self, source: str, shape: Shape, output: str) -> Shape:
        other = self.draw(st.sampled_from([name for name, like in self.values if like == shape]))
        self.node(self.draw(st.sampled_from(BINARY)), [source, other], output)
        return shape

    def _arithmetic(self, source: str, shape: Shape, output: str) -> Shape:
        """Arithmetic with a constant that is often neutral."""
        number = self.draw(st.sampled_from((0.0, 1.0, 2.0, -0.5)))
        size = self.draw(st.sampled_from(((), (1,), shape[-1:], shape)))
        operand = self.constant(np.full(size, number, np.float32))
        op_types = ("Add", "Mul", "Sub", "Div") if number else ("Add", "Mul", "Sub")
        self.node(self.draw(st.sampled_from(op_types)), [source, operand], output)
        return shape

    def _transpose(self, source: str, shape: Shape, output: str) -> Shape:
        perm = self.draw(st.permutations(range(3)))
        self.node("Transpose", [source], output, perm=list(perm))
        return tuple(shape[axis] for axis in perm)

    def _matmul(self, source: str, shape: Shape, output: str) -> Shape:
        """A product with a weight that is transposed at run time, as exporters write a Linear."""
        weights = np.random.default_rng(len(self.nodes)).normal(size=(shape[-1],) * 2)
        self.node("Transpose", [self.constant(weights.astype(np.float32))], f"{output}_t", perm=[1, 0])
        self.node("MatMul", [source, f"{output}_t"], output)
        return shape

    def _folded(self, source: str, shape: Shape, output: str) -> Shape:
        """A sum with a value computed from constants alone."""
        left, right = (self.constant(np.full((1,), value, np.float32)) for value in (1.5, 2.5))
        self.node("Add", [left, right], f"{output}_c")
        self.node("Mul", [source, f"{output}_c"], output)
        return shape

    def _reshape(self, source: str, shape: Shape, output: str) -> Shape:
        target = tuple(self.draw(st.permutations(shape)))
        written = list(target)
        trick = self.draw(st.sampled_from(("plain", "minus", "zero", "through")))
        if trick == "minus":
            written[self.draw(st.integers(0, 2))] = -1
        elif trick == "zero" and target[0] == shape[0]:
            written[0] = 0
        elif trick == "through":
            flat = self.constant(np.array([-1], np.int64))
            self.node("Reshape", [source, flat], f"{output}_flat")
            source = f"{output}_flat"
        self.node("Reshape", [source, self.constant(np.array(written, np.int64))], output)
        return target


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A valid model with two inputs, a few outputs, and some dead nodes."""
    sketch = _Sketch(draw)
    for _ in range(draw(st.integers(2, 14))):
        sketch.grow()
    made = sketch.values[2:]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "z")]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs]
    graph = helper.make_graph(sketch.nodes, "random", inputs, results, sketch.initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", OPSET)])
