"""Constants fold exactly, within the budget, and only if the result is constant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, graph_text, op_types, parse, reasons, run_passes
from sardonyx import runtime
from sardonyx.errors import RuntimeFailure
from sardonyx.ir import origins
from sardonyx.ir.rewriter import Log
from sardonyx.passes._evaluation import FAILED, GROWS, MAX_HELD_BYTES
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.eliminate_unused_initializers import EliminateUnusedInitializers
from sardonyx.passes.folding.fold_constants import TOO_LARGE, FoldConstants
from sardonyx.records.run import RewriteKind

CLEAN = [FoldConstants(), EliminateDeadNodes(), EliminateUnusedInitializers()]


class Engine:
    """The runtime, with a count of its runs and a set of operators that it must not run."""

    def __init__(self, *unknown: str) -> None:
        self.runs = 0
        self.largest = 0
        self._unknown = unknown

    def __call__(self, model: onnx.ModelProto) -> list[np.ndarray]:
        self.runs += 1
        if any(node.op_type in self._unknown for node in model.graph.node):
            raise RuntimeFailure("no such operator")
        assert not model.graph.input
        arrays = runtime.evaluate(model)
        self.largest = max([self.largest, *(array.nbytes for array in arrays)])
        return arrays


def fold(model: str | onnx.ModelProto, engine: Engine | None = None) -> tuple[ir.Model, Log]:
    return run_passes(model, CLEAN, evaluate=engine or Engine())


def constant(model: ir.Model) -> np.ndarray:
    """The only remaining initializer."""
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    return value.const_value.numpy()


def test_a_region_folds_in_one_evaluation_and_keeps_its_origins() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y) <float[2] w = {1.0, 4.0}> {
        a = Sqrt(w)  b = Neg(w)  c = Add(a, b)  d = Mul(c, a)  e = Mul(x, d)  y = Add(e, c) }""")
    proto = parse(text)
    for index, node in enumerate(proto.graph.node):
        node.name = f"/net/part.{index}/{node.op_type}"
    engine = Engine()
    model, log = fold(proto, engine)
    assert op_types(model) == ["Mul", "Add"]
    assert engine.runs == 1
    assert {event.kind for event in log.events if event.pass_name == "fold-constants"} == {RewriteKind.FOLD}
    inherited = frozenset[str]().union(*(origins.origins(value) for value in model.graph.initializers.values()))
    assert inherited == {f"net.part.{index}" for index in range(4)}
    assert_same(text, model)


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("int64", "Mul(w, w)"),
        ("int32", "Add(w, w)"),
        ("uint8", "BitwiseNot(w)"),
        ("bool", "Not(w)"),
        ("float16", "Add(w, w)"),
        ("double", "Sqrt(w)"),
        ("bfloat16", "Add(w, w)"),
        ("string", "Concat <axis = 0> (w)"),
        ("string", "StringConcat(w, w)"),
    ],
)
def test_every_type_folds(kind: str, expression: str) -> None:
    values = {"bool": "{1, 0}", "string": '{"one", "two"}'}.get(kind, "{1, 0}")
    text = graph_text(f"""agraph ({kind}[2] x) => ({kind}[4] y) <{kind}[2] w = {values}> {{
        a = {expression}  y = Concat <axis = 0> (x, a) }}""", 20)  # fmt: skip
    model, _ = fold(text)
    assert op_types(model) == ["Concat"]
    if kind not in ("string", "bfloat16"):
        assert_same(text, model)


def test_sub_byte_and_float8_casts_fold_or_are_refused_but_never_break() -> None:
    for kind in (TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E5M2):
        w = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, -2.0, 3.0])
        nodes = [
            helper.make_node("Cast", ["w"], ["a"], to=kind),
            helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "b"], ["y"]),
        ]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], [w])
        proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        model, log = fold(proto)
        assert op_types(model) == ["Mul"] or reasons(log)
        assert_same(proto, model)


@pytest.mark.parametrize(
    "draw",
    ["RandomNormalLike(w)", "RandomNormalLike <seed = 1.0> (w)", "Bernoulli <seed = 3.0> (w)", "Dropout(w, half, yes)"],
)
def test_random_values_are_not_constants(draw: str) -> None:
    text = graph_text(f"""agraph (float[2] x) => (float[2] y)
        <float[2] w = {{0.5, 0.5}}, float half = {{0.5}}, bool yes = {{1}}> {{ a = {draw}  y = Mul(x, a) }}""")
    model, _ = fold(text)
    assert len(op_types(model)) == 2


def test_quantization_is_kept() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y)
        <int8[2] w = {1, 2}, float s = {0.5}, int8 z = {0}> { a = DequantizeLinear(w, s, z)  y = Mul(x, a) }""")
    model, _ = fold(text)
    assert op_types(model) == ["DequantizeLinear", "Mul"]


def test_an_initializer_that_a_caller_may_override_is_not_a_constant() -> None:
    text = graph_text("""agraph (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> {
        a = Neg(w)  y = Mul(x, a) }""")
    model, _ = fold(text)
    assert op_types(model) == ["Neg", "Mul"]


def test_an_output_stays_a_node_and_its_producers_fold() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y, float[2] c) <float[2] w = {1.0, 4.0}> {
        a = Sqrt(w)  b = Neg(a)  c = Exp(b)  y = Mul(x, c) }""")
    model, log = fold(text)
    assert op_types(model) == ["Exp", "Mul"]
    assert "the graph's output would lose its name" in reasons(log)
    assert_same(text, model)


def test_bodies_fold_and_keep_what_they_capture() -> None:
    text = graph_text("""agraph (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 4.0}> {
        a = Sqrt(w)
        y = If (c) <then_branch = t () => (float[2] p) { q = Neg(a)  p = Mul(x, q) },
                    else_branch = e () => (float[2] s) { s = Mul(x, a) }>
    }""")
    model, _ = fold(text)
    (branch,) = model.graph
    assert [node.op_type for node in branch.attributes["then_branch"].as_graph()] == ["Mul"]
    assert_same(text, model)


def test_loop_state_is_not_a_constant() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}, float[2] w = {1.0, 4.0}> {
        y = Loop (n, go, x) <body = b (int64 i, bool k, float[2] s) => (bool l, float[2] t) {
            l = Identity(k)  a = Sqrt(w)  b2 = Add(a, w)  t = Add(s, b2)
        }>
    }""")
    model, _ = fold(text)
    (loop,) = model.graph
    assert [node.op_type for node in loop.attributes["body"].as_graph()] == ["Identity", "Add"]
    assert_same(text, model)


def test_functions_fold_into_constant_nodes() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[2] x) => (float[2] y) { y = local.f <k = 2.0> (x) }
        <domain: "local", opset_import: ["" : 17]>
        f <k> (a) => (b) {
            w = Constant <value = float[2] {1.0, 4.0}> ()  r = Sqrt(w)  n = Neg(r)
            p = Constant <value_float: float = @k> ()  q = Neg(p)
            c = Mul(a, n)  b = Mul(c, q)
        }
    """
    model, _ = fold(text)
    (function,) = model.functions.values()
    ops = [node.op_type for node in function]
    assert sorted(ops) == ["Constant", "Constant", "Mul", "Mul", "Neg"]  # the parameter is not a constant
    assert_same(text, model)


def test_operators_of_other_domains_stay() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        agraph (float[2] x) => (float[2] y) <float[2] w = {1.0, 4.0}> { a = com.microsoft.Gelu(w)  y = Mul(x, a) }
    """
    model, _ = fold(text)
    assert op_types(model) == ["Gelu", "Mul"]


@pytest.mark.parametrize(
    "grown",
    [
        "ConstantOfShape(many)",
        "Expand(one, many)",
        "Tile(one, many)",
        "Range(zero, count, step)",
        "OneHot(index, depth, values)",
        "Pad(one, pads)",
        "Gather(one, twice)",
    ],
)
def test_huge_results_are_never_computed(grown: str) -> None:
    big = 1 << 30
    body = f"a = {grown}"
    if grown.startswith("Gather"):
        body = "twice = Expand(zeros, many)  a = Gather(one, twice)"
    text = graph_text(f"""agraph (float[N] x) => (float y) <
            int64[1] many = {{{big}}}, float[1] one = {{1.0}}, float zero = {{0.0}}, float count = {{{big}.0}},
            float step = {{1.0}}, int64[1] index = {{0}}, int64 depth = {{{big}}}, float[2] values = {{0.0, 1.0}},
            int64[2] pads = {{0, {big}}}, int64[1] zeros = {{0}}
        > {{ {body}  s = ReduceSum <keepdims = 0> (a)  t = ReduceSum <keepdims = 0> (x)  y = Add(s, t) }}""")
    engine = Engine()
    proto = onnx.parser.parse_model(text)
    model, log = fold(proto, engine)
    assert GROWS in reasons(log)
    assert engine.largest < 1 << 16
    assert len(op_types(model)) == len(proto.graph.node)


def test_growth_within_the_budget_folds_and_the_model_has_a_limit() -> None:
    def expanded(count: int) -> str:
        nodes = "  ".join(f"a{i} = Expand(w{i}, many)  y{i} = Mul(x, a{i})" for i in range(count))
        outputs = ", ".join(f"float[N] y{i}" for i in range(count))
        weights = ", ".join(f"float[1] w{i} = {{{i}.0}}" for i in range(count))
        return graph_text(f"agraph (float[N] x) => ({outputs}) <int64[1] many = {{15000}}, {weights}> {{ {nodes} }}")

    model, _ = fold(expanded(2))
    assert op_types(model) == ["Mul", "Mul"]
    model, log = fold(expanded(20))  # 20 * 60 kB exceeds the budget of a model of this size
    assert 0 < op_types(model).count("Expand") < 20
    assert GROWS in reasons(log)


def test_a_small_result_of_a_large_constant_folds() -> None:
    text = graph_text("""agraph (float x) => (float y) <int64[1] many = {300000}, float[1] one = {2.0}> {
        a = Expand(one, many)  s = ReduceSum <keepdims = 0> (a)  y = Add(s, x) }""")
    model, _ = fold(text)
    assert op_types(model) == ["Add"]
    assert constant(model) == 600000


def test_sizes_that_depend_on_values_are_determined_step_by_step() -> None:
    text = graph_text("""agraph (float[N] x) => (float[N] y)
        <int64[3] w = {3, 0, 5}, int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}> {
            n = NonZero(w)  m = Size(n)  r = Range(zero, m, one)  s = Unsqueeze(m, axis)  e = Expand(r, s)
            f = Cast <to = 1> (e)  g = ReduceSum <keepdims = 0> (f)  y = Mul(x, g)
        }""")
    engine = Engine()
    model, log = fold(text, engine)
    assert op_types(model) == ["Mul"]
    assert constant(model) == 1
    assert engine.runs <= 5
    assert [event.pass_name for event in log.events].count(
        "fold-constants"
    ) == 1  # sizes were determined without changing the graph
    assert_same(text, model)


def test_division_by_zero_is_not_folded() -> None:
    text = graph_text("""agraph (int64[2] x, bool c) => (int64[2] y) <int64[2] w = {1, 2}, int64[2] zero = {0, 1}> {
        y = If (c) <then_branch = t () => (int64[2] p) { a = Div(w, zero)  p = Add(x, a) },
                    else_branch = e () => (int64[2] s) { b = Mod(w, zero)  s = Add(x, b) }>
    }""")
    model, _ = fold(text)
    branches = [a.as_graph() for a in next(iter(model.graph)).attributes.values()]
    assert [[node.op_type for node in branch] for branch in branches] == [["Div", "Add"], ["Mod", "Add"]]


def test_a_divisor_that_is_computed_first_folds_later() -> None:
    text = graph_text("""agraph (int64[2] x) => (int64[2] y) <int64[2] w = {9, 8}> {
        d = Add(w, w)  q = Div(d, w)  y = Add(x, q) }""")
    model, _ = fold(text)
    assert op_types(model) == ["Add"]
    assert_same(text, model)


def test_a_node_that_fails_to_evaluate_is_refused_once_and_the_rest_folds() -> None:
    nodes = "  ".join(f"a{i} = {'Sin' if i == 5 else 'Neg'}(w{i})  y{i} = Mul(x, a{i})" for i in range(8))
    outputs = ", ".join(f"float[1] y{i}" for i in range(8))
    weights = ", ".join(f"float[1] w{i} = {{{i}.0}}" for i in range(8))
    text = graph_text(f"agraph (float[1] x) => ({outputs}) <{weights}> {{ {nodes} }}")
    engine = Engine("Sin")
    model, log = fold(text, engine)
    assert sorted(op_types(model)) == ["Mul"] * 8 + ["Sin"]
    assert reasons(log) == [FAILED]
    assert engine.runs == 7  # 8, 4, 4, 2, 1, 1, 2 roots; not once more in the sweeps that follow
    assert_same(text, model)


def test_without_an_engine_nothing_is_evaluated() -> None:
    text = graph_text("agraph (float[1] x) => (float[1] y) <float[1] w = {4.0}> { a = Sqrt(w)  y = Mul(x, a) }")
    model, log = run_passes(text, CLEAN)
    assert op_types(model) == ["Sqrt", "Mul"]
    assert not log.events


def test_several_outputs_fold_if_they_are_read() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y) <float[6] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
        a, b, c = Split <num_outputs = 3> (w)  d = Mul(x, a)  y = Add(d, c) }""")
    model, _ = fold(text)
    assert op_types(model) == ["Mul", "Add"]
    assert len(model.graph.initializers) == 2
    assert_same(text, model)


def test_an_old_ir_version_gets_constant_nodes() -> None:
    text = """<ir_version: 3, opset_import: ["" : 8]>
        agraph (float[2] x) => (float[2] y) {
            w = Constant <value = float[2] {1.0, 4.0}> ()  a = Sqrt(w)  y = Mul(x, a)
        }
    """
    model, _ = fold(text)
    assert not model.graph.initializers
    assert [node.op_type for node in model.graph] == ["Constant", "Mul"]
    assert_same(text, model)


def large(op: str, rows: int = 600, **attributes: Any) -> onnx.ModelProto:
    """A weight of more than a megabyte, changed by one node before it is used."""
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((rows, 600)).astype(np.float32), "w")
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    inputs = ["w", "two"] if op == "Mul" else ["w"]
    nodes = [helper.make_node(op, inputs, ["a"], **attributes), helper.make_node("Mul", ["x", "a"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 600]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [w, two])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def test_a_large_weight_becomes_a_computed_tensor() -> None:
    proto = large("Mul")
    engine = Engine()
    model, _ = fold(proto, engine)
    assert op_types(model) == ["Mul"]
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    assert value.const_value.nbytes > MAX_HELD_BYTES
    runs = engine.runs
    np.testing.assert_array_equal(value.const_value.numpy(), numpy_helper.to_array(proto.graph.initializer[0]) * 2)
    assert engine.runs == runs + 1  # computed when read, and not cached
    assert_same(proto, model)


def test_a_large_weight_shared_with_another_reader_is_not_stored_twice() -> None:
    proto = large("Mul")
    proto.graph.node.append(helper.make_node("Add", ["x", "w"], ["z"]))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [600, 600]))
    model, log = fold(proto)
    assert op_types(model) == ["Mul", "Mul", "Add"]
    assert reasons(log) == [GROWS]


def test_a_dead_node_on_a_large_weight_is_left_to_the_pass_that_removes_it() -> None:
    proto = large("Mul")
    proto.graph.node.append(helper.make_node("Shape", ["w"], ["unread"]))
    model, _ = fold(proto)
    assert op_types(model) == ["Mul"]
    assert_same(proto, model)


def test_a_large_weight_that_cannot_be_evaluated_is_refused_at_once() -> None:
    model, log = fold(large("Sin"), Engine("Sin"))
    assert op_types(model) == ["Sin", "Mul"]
    assert reasons(log) == [FAILED]


def test_results_too_large_for_memory_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.passes.folding.fold_constants.MAX_FOLDED_BYTES", MAX_HELD_BYTES)
    engine = Engine()
    _, log = fold(large("Sin"), engine)
    assert reasons(log) == [TOO_LARGE]
    assert engine.runs == 0


OPS = st.sampled_from(["Neg(%s)", "Abs(%s)", "Add(%s, %s)", "Mul(%s, %s)", "Sub(%s, %s)", "Max(%s, %s)"])


@pytest.mark.slow
@given(st.lists(st.tuples(OPS, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 9))
def test_any_constant_graph_folds_to_the_same_function(steps: list[tuple[str, int, int]], last: int) -> None:
    made = ["w", "v"]
    lines: list[str] = []
    for index, (form, left, right) in enumerate(steps):
        names = (made[left % len(made)], made[right % len(made)])
        lines.append(f"t{index} = " + form % names[: form.count("%")])
        made.append(f"t{index}")
    body = "  ".join(lines)
    text = graph_text(f"""agraph (float x) => (float[N, M] y)
        <float[2, 1] w = {{-1.5, 0.25}}, float[1, 3] v = {{3.0, -0.0, 7.0}}> {{
            {body}  y = Mul(x, {made[last % len(made)]}) }}""")
    model, _ = fold(text)
    assert op_types(model) == ["Mul"]
    assert_same(text, model)


@pytest.mark.parametrize("operator", ["Gather", "Expand"])
@given(data=st.data())
def test_moved_elements_are_those_of_the_runtime(operator: str, data: st.DataObject) -> None:
    least = 1 if operator == "Gather" else 0
    shape = data.draw(st.lists(st.integers(least, 3), min_size=least, max_size=3))
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.float16]))
    array = np.arange(1, math.prod(shape) + 1).astype(dtype).reshape(shape)
    if operator == "Gather":
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        places = st.integers(-shape[axis], shape[axis] - 1)
        operand = np.array(data.draw(st.one_of(places, st.lists(places, max_size=3))), np.int64)
        moving = helper.make_node("Gather", ["x", "n"], ["a"], axis=axis)
        rank = len(shape) - 1 + operand.ndim
    else:
        sizes = [data.draw(st.sampled_from([1, size]) if size != 1 else st.integers(0, 3)) for size in shape]
        operand = np.array([*data.draw(st.lists(st.integers(1, 3), max_size=1)), *sizes], np.int64)
        moving = helper.make_node("Expand", ["x", "n"], ["a"])
        rank = max(len(shape), operand.size)
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(array.dtype), [None] * rank)
    constants = [numpy_helper.from_array(array, "x"), numpy_helper.from_array(operand, "n")]
    nodes = [moving, helper.make_node("Identity", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "moves", [], [output], constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    folded, _ = run_passes(model, CLEAN, evaluate=Engine("Gather", "Expand"))
    (expected,) = runtime.evaluate(model)
    (constant,) = folded.graph.initializers.values()
    assert constant.const_value is not None
    np.testing.assert_array_equal(constant.const_value.numpy(), expected, strict=True)
