"""Inferred shapes equal observed ones: onnx's node cases, random graphs, and real models run at several sizes.

Sizes of zero are used for single operators only: for an empty input, ONNX Runtime 1.31 returns the shape of the input
from reductions that keep their dims, so empty runs of whole models cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
import known_sizes
import models
import recorded
from ir.shapes_truth import check_inference
from passes.util import draw, graph_text, parse
from sardonyx.ir.facts import Facts

# onnx's node cases: the expected outputs are stored, so nothing needs to run.


@pytest.mark.parametrize("part", range(known_sizes.PARTS))
def test_node_cases_have_the_inferred_shapes(part: int) -> None:
    """All 1,884, static and with every dim dynamic, with small inputs fed or constant; as much is known as before."""
    verdicts = dict(known_sizes.node_case_verdicts(part))
    assert not [each for verdict in verdicts.values() for each in verdict.wrong]
    recorded.check("node_cases", {name: verdict.amounts for name, verdict in verdicts.items()})


# Single operators, at sizes of zero too.
OPERATORS = [
    "y = Slice(x, one, far)",
    "y = Slice(x, minus, far)",
    "y = Slice(x, minus, zero)",
    "y = Slice(x, one, minus)",
    "y = Slice(x, minus, low, zero, minus)",
    "y = Slice(x, minus, low, zero, back)",
    "y = Slice(x, low, far)",
    "y = Slice(x, one, three)",
    "y = Slice(x, zero, far, zero, three)",
    "s = Shape(x)  n = Slice(s, zero, one)  m = Sub(n, one)  y = Slice(x, m, n, zero)",
    "s = Shape(x)  n = Slice(s, zero, one)  h = Div(n, three)  y = Slice(x, h, n, zero)",
    "s = Shape(x)  n = Slice(s, zero, one)  y = Slice(x, zero, n, one)",
    "y = Concat <axis = 0> (x, x, x)",
    "y = Concat <axis = -1> (x, x)",
    "y = Transpose(x)",
    "y = Reshape(x, keep)",
    "y = Reshape(x, flat)",
    "y = Flatten <axis = 0> (x)",
    "y = Flatten <axis = -1> (x)",
    "y = Add(x, row)",
    "y = MatMul(x, square)",
    "t = Transpose(x)  y = MatMul(t, x)",
    "y = Pad(x, pads)",
    "y = Tile(x, twice)",
    "y = Unsqueeze(x, minus)",
    "y = Expand(x, ones)",
    "y = Gather(x, zero)",
    "y = OneHot <axis = 1> (i, depth, pair)",
    "n = Size(x)  s = Cast <to = 1> (n)  y = Mul(s, x)",
    "s = Shape(x)  n = Gather(s, at)  y = Range(at, n, step)",
    "s = Shape(x)  n = Gather(s, at)  y = Range(n, at, down)",
    "s = Shape(x)  y = ConstantOfShape(s)",
    "s = Shape(x)  p = ReduceProd <keepdims = 1> (s)  y = ConstantOfShape <value = int64[1] {1}> (p)",
    "s = Shape(x)  a, b = Split <axis = 0> (s, ones)  t = Concat <axis = 0> (b, a)  y = Reshape(x, t)",
    "s = Shape(x)  f = Cast <to = 1> (s)  d = Div(f, three_f)  c = Ceil(d)  i2 = Cast <to = 7> (c)  "
    "y = ConstantOfShape(i2)",
    "s = Shape(x)  f = Cast <to = 1> (s)  d = Div(f, three_f)  c = Floor(d)  i2 = Cast <to = 7> (c)  "
    "y = ConstantOfShape(i2)",
    "s = Shape(x)  m = Mod(s, three)  y = ConstantOfShape(m)",
    "m = Mod(back, three)  y = Slice(x, m, far)",
    "m = Mod <fmod = 1> (back, three)  y = Slice(x, m, far)",
    "m = Div(seven, three)  y = Slice(x, m, far)",
    "s = Shape(x)  m = Sub(s, three)  k = Mod(m, three)  y = ConstantOfShape(k)",
    "s = Shape(x)  m = Max(s, three, one)  k = Min(m, s)  y = ConstantOfShape(k)",
    "s = Shape(x)  c = Equal(s, three)  w = Where(c, s, three)  y = ConstantOfShape(w)",
    "s = Shape(x)  c = Less(s, zero)  w = Where(c, three, s)  y = ConstantOfShape(w)",
    "f = ConstantOfShape <value = int64[1] {1}> (three)  p = NonZero(f)  y = Transpose(p)",
    "s = Shape(x)  n = Slice(s, zero, one)  f = ConstantOfShape <value = int64[1] {1}> (n)  y = NonZero(f)",
    "q = SplitToSequence <axis = 1> (x, two)  y = SequenceAt(q, at)",
    "q = SplitToSequence <axis = 1> (x, parts)  y = SequenceAt(q, one_)",
    "s = Shape(x)  n = Gather(s, at)  q = SplitToSequence <axis = 1> (x, n)  y = SequenceAt(q, at)",
    "s = Shape(x)  n = Gather(s, at)  q = SplitToSequence <axis = 0> (x, n)  y = SequenceAt(q, at)",
    "q = SplitToSequence <axis = 1, keepdims = 0> (x)  y = SequenceAt(q, at)",
    "y, k = TopK <axis = 1> (x, three)",
    "y = ArgMax <axis = 1, keepdims = 0> (x)",
    "y = Einsum <equation = 'ab,cb->ca'> (x, x)",
]
CONSTANTS = """<
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[1] minus = {-1}, int64[1] back = {-2},
    int64[1] seven = {-7},
    int64[1] far = {9223372036854775807}, int64[1] low = {-9223372036854775807}, int64[2] keep = {0, 4},
    int64[1] flat = {-1}, int64[2] twice = {2, 1}, int64[2] ones = {1, 1}, int64[4] pads = {1, 0, 2, 3}, int64 at = {0},
    int64 one_ = {1}, int64 step = {2}, int64 down = {-2}, int64 two = {2}, int64[2] parts = {1, 3}, int64 depth = {5},
    float[2] pair = {0.0, 1.0}, float[4] row = {1, 2, 3, 4}, float[4, 3] square = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3},
    float three_f = {3}
>"""


@pytest.mark.parametrize("body", OPERATORS)
def test_single_operators_at_every_size(body: str) -> None:
    quoted = body.replace("'", '"')
    text = graph_text(f"agraph (float[N, 4] x, int64[M] i) => (float[A, B] y) {CONSTANTS} {{ {quoted} }}")
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(size, 4)).astype(np.float32), "i": np.arange(size)} for size in (0, 1, 2, 3, 5, 7)]
    verdict = check_inference(model, feeds)
    assert not verdict.wrong
    assert verdict.known > 5
    recorded.check("single_operators", {body: verdict.amounts})


# Whole models.


@settings(max_examples=25)
@given(graphs.models(), st.booleans())
def test_random_graphs(model: onnx.ModelProto, dynamic: bool) -> None:
    """Static, or with a name for each dim of the inputs."""
    for info in model.graph.input if dynamic else ():
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"d{axis}"
    verdict = check_inference(model, [draw(model, 0, {f"d{axis}": size for axis, size in enumerate(graphs.SHAPE)})])
    assert not verdict.wrong
    assert verdict.known
    assert dynamic or not verdict.vague


def feeds_of(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random inputs, with small numbers for ids and masks."""
    rng = np.random.default_rng(0)
    feeds = draw(model, 0, sizes)
    return {
        name: rng.integers(0, 2, array.shape).astype(array.dtype) if array.dtype.kind in "iu" else array
        for name, array in feeds.items()
    }


def runs(model: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of three sizes of every named dim, including 1. Independent dims have different sizes."""
    named = [dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param]
    names = list(dict.fromkeys(named))
    for first in (2, 5, 1) if names else (1,):
        yield feeds_of(model, {name: 1 if first == 1 else first + 2 * index for index, name in enumerate(names)})


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", models.names())
def test_real_models(name: str, exporter: str, small_model: Callable[[str, str], Path]) -> None:
    """All dims are known, and all are correct."""
    model = onnx.load(str(small_model(name, exporter)))
    verdict = check_inference(model, runs(model))
    assert not verdict.wrong
    assert verdict.known > 40
    assert not verdict.unknown


def test_a_model_exported_with_dynamic_dims(tmp_path: Path) -> None:
    """The dynamo exporter uses other operators for arithmetic on sizes."""
    from sardonyx.verbs.export.export import export

    module, inputs = models.build("bert")
    free = {name: {1: "sequence"} for name in inputs}
    export(module, (), tmp_path / "m.onnx", kwargs=inputs, exporter="dynamo", dynamic=free, verify="off")
    model = onnx.load(str(tmp_path / "m.onnx"))
    assert any(node.op_type == "Shape" for node in model.graph.node)
    verdict = check_inference(model, runs(model))
    assert not verdict.wrong
    assert not verdict.unknown


def test_the_comparison_detects_a_wrong_shape() -> None:
    """Sensitivity: without this, the tests above would show nothing."""
    model = parse(graph_text("agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  y = Neg(a) }"))
    graph = ir.from_proto(model)
    facts = Facts(graph)
    facts.learn(graph.graph.node(0).outputs[0], ir.DataType.FLOAT, (3, 4))
    assert check_inference(model, [{"x": np.zeros((2, 4), np.float32)}], facts).wrong
