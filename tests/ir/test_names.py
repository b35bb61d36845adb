"""Bodies whose values have the names of outer values: no rewrite makes a name refer to another value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from passes.util import parse, run_passes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.runtime import Session

POOL = ("a", "b", "c", "d", "e", "x", "w")  # few names, so that collisions are frequent
SHAPE = (2, 2)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Face = tuple[str, int, tuple[int, ...]]


class Sketch:
    """A graph under construction. Every value has a unique name; `shown` maps it to its shared name."""

    def __init__(self, draw: st.DrawFn, shown: dict[str, str], outer: dict[str, str], depth: int) -> None:
        self.draw = draw
        self.shown = shown
        self.outer = outer  # values of the enclosing graphs that are visible here, by their shared names
        self.depth = depth
        self.own: dict[str, str] = {}
        self.read: set[str] = set()  # names that refer to outer values, which this graph must not define
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def define(self) -> str:
        """A value of this graph, usually with the name of an outer one."""
        free = [name for name in POOL if name not in self.own and name not in self.read]
        name = self.draw(st.sampled_from(free)) if free else f"v{len(self.shown)}"
        value = f"u{len(self.shown)}"
        self.shown[value] = name
        self.own[name] = value
        return value

    def visible(self) -> str:
        """A value that is visible here."""
        name = self.draw(st.sampled_from(sorted({*self.own, *self.outer})))
        self.read.add(name)
        return self.own.get(name) or self.outer[name]

    def fill(self, nodes: int) -> None:
        """Add constants, some of them equal, nodes that passes remove, merge or share, and bodies."""
        for _ in range(self.draw(st.integers(0, 2))):
            array = np.full(SHAPE, self.draw(st.sampled_from([0.5, 0.25])), np.float32)
            self.weights.append(numpy_helper.from_array(array, self.define()))
        kinds = ["Identity", "Identity", "Transpose", "Neg", "Min", *(["If", "Loop", "Scan"] if self.depth < 3 else [])]
        for _ in range(nodes):
            match self.draw(st.sampled_from(kinds)):
                case "If":
                    branches = {f"{name}_branch": self._body(name) for name in ("then", "else")}
                    self._node("If", ["flag"], **branches)
                case "Loop":
                    self._node("Loop", ["turns", "", self.visible()], body=self._body("loop"))
                case "Scan":
                    self._node("Scan", [self.visible(), "many"], body=self._body("scan"), num_scan_inputs=1)
                case kind:
                    self._node(kind, [self.visible() for _ in range(1 + (kind == "Min"))])

    def _node(self, kind: str, inputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [self.define()], **attributes))

    def _body(self, name: str) -> onnx.GraphProto:
        inner = Sketch(self.draw, self.shown, {**self.outer, **self.own}, self.depth + 1)
        last, going, turn, keep, part = (f"{each}{self.depth}" for each in ("last", "going", "turn", "keep", "part"))
        inputs: list[Face] = [(turn, INT64, ()), (keep, BOOL, ())] if name == "loop" else []
        inputs += [(inner.define(), FLOAT, SHAPE)] if name in ("loop", "scan") else []
        inputs += [(part, FLOAT, SHAPE)] if name == "scan" else []
        inner.fill(self.draw(st.integers(1, 3)))
        inner.nodes.append(helper.make_node("Mean", [*inner.own.values(), inner.visible(), inner.visible()], [last]))
        outputs: list[Face] = [(last, FLOAT, SHAPE)]
        if name == "loop":
            inner.nodes.append(helper.make_node("Identity", [keep], [going]))
            outputs.insert(0, (going, BOOL, ()))
        self.read |= inner.read - inner.own.keys()
        return helper.make_graph(inner.nodes, name, _infos(inputs), _infos(outputs), inner.weights)


def _infos(values: Sequence[Face]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(*value) for value in values]


@st.composite
def nested(draw: st.DrawFn) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Nested bodies of 2 x 2 floats, once with unique names and once with colliding names."""
    shown = {"x": "x", "y0": "y0"}
    sketch = Sketch(draw, shown, {}, 0)
    sketch.own = dict(shown)
    sketch.fill(draw(st.integers(2, 6)))
    sketch.nodes.append(helper.make_node("Mean", list(sketch.own.values()), ["out0"]))
    sketch.nodes.append(helper.make_node("Neg", [sketch.visible()], ["out1"]))
    inputs: list[Face] = [("x", FLOAT, SHAPE), ("y0", FLOAT, SHAPE), ("flag", BOOL, ()), ("turns", INT64, ())]
    inputs.append(("many", FLOAT, (3, *SHAPE)))
    outputs: list[Face] = [("out0", FLOAT, SHAPE), ("out1", FLOAT, SHAPE)]
    graph = helper.make_graph(sketch.nodes, "nested", _infos(inputs), _infos(outputs), sketch.weights)
    apart = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    colliding = onnx.ModelProto()
    colliding.CopyFrom(apart)
    _rename(colliding.graph, shown)
    return apart, colliding


def _rename(graph: onnx.GraphProto, shown: dict[str, str]) -> None:
    for each in (*graph.input, *graph.output, *graph.initializer):
        each.name = shown.get(each.name, each.name)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [shown.get(name, name) for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, shown)


def answers(model: onnx.ModelProto) -> list[np.ndarray]:
    """The outputs for both values of every condition."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "y0")}
    feeds["many"] = rng.standard_normal((3, *SHAPE)).astype(np.float32)
    session = Session(model, threads=1)
    return [
        np.asarray(value)
        for flag in (True, False)
        for turns in (0, 2)
        for value in session.run({**feeds, "flag": np.array(flag), "turns": np.array(turns, np.int64)})
    ]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested())
def test_every_use_keeps_its_meaning(models: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    """The reference is the same graph with unique names, because runtimes resolve collisions differently."""
    apart, colliding = models
    made = sardonyx.optimize(colliding, verify="off").model
    assert made is not None
    proto = io.to_proto(made)
    parse(proto)
    _check(proto.graph, set())
    for want, got in zip(answers(apart), answers(proto), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def _check(graph: onnx.GraphProto, visible: set[str]) -> None:
    """A name refers to one value wherever it is visible."""
    own = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    own += [name for node in graph.node for name in node.output]
    assert not visible & set(own)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check(attribute.g, visible | set(own))


def test_a_model_without_shadowing_keeps_its_names() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = one () => (float[2] r) { r = Neg(x) },
                else_branch = two () => (float[2] r) { r = Abs(x) }
            >
        }"""
    model = onnx.parser.parse_model(text)
    made, _ = run_passes(model, [EliminateIdentity()])
    assert [graph.outputs[0].name for graph in Facts(made).scopes] == ["y", "r", "r"]
