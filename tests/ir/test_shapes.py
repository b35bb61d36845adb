"""Shape inference: bodies and functions, which annotations are used, malformed graphs, and the cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ir.shapes_truth import check_inference
from passes.util import graph_text
from sardonyx.ir.facts import Facts
from sardonyx.ir.shapes import engine, expr
from sardonyx.ir.shapes.engine import Shapes

N = expr.symbol("N")


def facts_of(model: str | onnx.ModelProto) -> tuple[Facts, dict[str, ir.Value]]:
    """Facts after inference, and every value by its name."""
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    graph = ir.from_proto(proto)
    facts = Facts(graph)
    facts.infer()
    named = {value.name or "": value for scope in facts.scopes.values() for value in scope.graph.inputs}
    for scope in facts.scopes.values():
        named |= {value.name or "": value for node in scope.graph for value in node.outputs}
    return facts, named


def shapes_of(model: str | onnx.ModelProto) -> dict[str, engine.Shape | None]:
    """The shape of every value."""
    facts, values = facts_of(model)
    return {name: facts.shape(value) for name, value in values.items()}


# Which annotations are used


def test_only_annotations_of_inputs_are_used() -> None:
    """A wrong annotation of an inner value or an output is ignored."""
    text = graph_text("""agraph (float[N, 4] x) => (float[9, 9] y) <float[7, 7] a> {
        a = Relu(x)  y = Neg(a) }""")
    assert shapes_of(text)["a"] == shapes_of(text)["y"] == (N, 4)


@pytest.mark.parametrize("length", ["P + N", "N+P", "P + N + 1", "P-N"])
def test_a_name_is_not_arithmetic(length: str) -> None:
    """The runtime accepts a mask of any length, whatever its dimension is called."""
    declared = {"new": ("N", 4), "past": ("P", 4), "mask": (length, 4)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in declared.items()]
    nodes = [helper.make_node("Concat", ["past", "new"], ["all"], axis=0)]
    output = helper.make_tensor_value_info("all", TensorProto.FLOAT, None)
    shapes = shapes_of(helper.make_model(helper.make_graph(nodes, "g", inputs, [output])))
    assert shapes["mask"] == (expr.symbol(length), 4)
    assert shapes["mask"] != shapes["all"]


def test_an_initializer_that_may_be_overridden_is_an_input() -> None:
    text = graph_text("agraph (float[N, 4] x, int64[1] s = {-1}) => (float[M] y) { y = Reshape(x, s) }")
    facts, values = facts_of(text)
    assert facts.contents(values["s"]) is None
    shape = facts.shape(values["y"])
    assert shape is not None
    (dim,) = shape
    assert isinstance(dim, expr.Expr)
    assert dim.is_vague or dim == expr.multiply(N, 4)  # a single dynamic dim is known for any target


@pytest.mark.parametrize("kind", ["seq(float[2, 3])", "optional(float[2, 3])"])
def test_a_value_that_is_not_a_tensor_has_no_shape(kind: str) -> None:
    facts, values = facts_of(graph_text(f"agraph ({kind} x) => ({kind} y) {{ y = Identity(x) }}"))
    assert facts.shape(values["x"]) is None
    assert facts.shape(values["y"]) is None


def test_dims_without_a_name_are_each_their_own() -> None:
    shapes = shapes_of(graph_text("agraph (float[?, 2] x, float[?, 2] z) => (float[?, 2] y) { y = Add(x, z) }"))
    assert shapes["x"] != shapes["z"]
    assert shapes["x"] is not None


# Bodies


LOOP = """agraph (float[N, 4] x, int64 count, bool go) => (float[A, B] y, float[C, D, E] all) {
    y, all = Loop <body = turn (int64 i, bool c, float[P, Q] s) => (bool d, float[R, S] t, float[T, U] each) {
        d = Identity(c)  %s
    }> (count, go, x) }"""


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ("r = Relu(s)  t = Add(r, x)  each = Neg(t)", (N, 4)),
        ("t = Concat <axis = 0> (s, x)  each = Neg(t)", (None, 4)),
        ("t = Concat <axis = 1> (s, s)  each = Transpose(s)", (N, None)),
        ("t = Transpose(s)  each = Neg(s)", (None, None)),
        ("a = Shape(s)  t = Identity(s)  each = ConstantOfShape(a)", (N, 4)),
    ],
)
def test_a_loop_keeps_the_dims_that_its_body_keeps(step: str, kept: tuple[Any, ...]) -> None:
    text = graph_text(LOOP % step)
    shapes = shapes_of(text)
    y, every = shapes["y"], shapes["all"]
    assert y is not None
    assert every is not None
    for dim, wanted in zip(y, kept, strict=True):
        assert dim == wanted if wanted is not None else isinstance(dim, expr.Expr) and dim.is_vague
    # An unknown of the body may differ in each iteration, so none of them is used outside.
    inside = {atom for name in ("s", "t", "each") for atom in shapes[name] or () if isinstance(atom, expr.Expr)}
    assert not any(isinstance(dim, expr.Expr) and dim.is_vague and dim in inside for dim in (*y, *every))
    feeds = [{"x": np.ones((n, 4), np.float32), "count": np.array(k), "go": np.array(True)}
             for n, k in ((2, 3), (1, 1), (3, 0))]  # fmt: skip
    assert not check_inference(onnx.parser.parse_model(text), feeds).wrong


def test_a_loop_whose_rank_changes_is_unknown() -> None:
    text = graph_text(LOOP % "t = Unsqueeze(s, z)  each = Neg(x)").replace(
        "{\n    y, all", "<int64[1] z = {0}> {\n    y, all"
    )
    assert shapes_of(text)["y"] is None


def test_loops_within_loops() -> None:
    text = graph_text("""agraph (float[N, 4] x, int64 k, bool go) => (float[A, B] y) {
        y = Loop <body = outer (int64 i, bool c, float[P, Q] s) => (bool d, float[P, Q] t) {
            d = Identity(c)
            t = Loop <body = inner (int64 j, bool e, float[P, Q] u) => (bool f, float[P, Q] v) {
                f = Identity(e)  v = Add(u, s)
            }> (k, c, s)
        }> (k, go, x) }""")
    assert shapes_of(text)["y"] == (N, 4)
    assert shapes_of(text)["v"] == (N, 4)


def test_a_scan_reads_and_writes_along_its_axes() -> None:
    text = graph_text("""agraph (float[4] start, float[N, T, 4] x) => (float[A] last, float[B, C, D] every) {
        last, every = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
            body = turn (float[P] s, float[Q, R] part) => (float[P] t, float[Q, R] made) {
                m = ReduceSum(part, zero)  q = Squeeze(m, zero)  t = Add(s, q)  made = Relu(part)
            }> (start, x) }""").replace("{\n        last, every =", "<int64[1] zero = {0}> {\n        last, every =")
    shapes = shapes_of(text)
    assert shapes["part"] == (N, 4)
    assert shapes["last"] == (4,)
    assert shapes["every"] == (N, 4, expr.symbol("T"))
    feeds = [{"start": np.ones(4, np.float32), "x": np.ones((n, t, 4), np.float32)} for n, t in ((2, 3), (1, 1))]
    assert not check_inference(onnx.parser.parse_model(text), feeds).wrong


def test_branches_give_the_dims_on_which_they_agree() -> None:
    text = graph_text("""agraph (float[N, 4] x, bool c) => (float[A, B] y, float[C, D] z) {
        y, z = If <then_branch = yes () => (float[P, Q] a, float[R, S] b) { a = Relu(x)  b = Neg(x) },
                   else_branch = no () => (float[P, Q] e, float[R, S] f) { e = Abs(x)  f = Concat <axis = 0> (x, x) }>
               (c) }""")
    shapes = shapes_of(text)
    assert shapes["y"] == (N, 4)
    z = shapes["z"]
    assert z is not None
    assert z[1] == 4
    assert isinstance(z[0], expr.Expr)
    assert z[0].is_vague


FUNCTION = """<ir_version: 10, opset_import: ["" : 18, "mine" : 1]>
agraph (float[N, 6] x, float[2, 6] w) => (float[A, B, C] y, float[D, E] z) {
    y = mine.heads(x)  v = mine.heads(w)  z = mine.scaled <factor = 2> (v) }
<domain: "mine", opset_import: ["" : 18]> heads (a) => (b) {
    s = Shape(a)  at = Constant <value_ints = [0]> ()  n = Gather(s, at)
    rest = Constant <value_ints = [2, 3]> ()  t = Concat <axis = 0> (n, rest)  b = Reshape(a, t) }
<domain: "mine", opset_import: ["" : 18]> scaled <factor> (a) => (b) { c = Cast <to: int = @factor> (a)  b = Neg(c) }
"""


def test_functions_are_inferred_for_each_call() -> None:
    shapes = shapes_of(FUNCTION)
    assert shapes["y"] == (N, 2, 3)
    assert shapes["v"] == (2, 2, 3)
    facts, values = facts_of(FUNCTION)
    assert facts.shape(values["a"]) is None  # inside the function it differs between calls


# Malformed graphs: shapes are unknown, and no exception is raised


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, x)",
        "y = Transpose <perm = [0, 0]> (x)",
        "y = Transpose <perm = [5]> (x)",
        "y = Concat <axis = 9> (x, x)",
        "y = Concat <axis = 0> (x, k)",
        "y = Squeeze <axes = [7]> (x)",
        "y = Gather <axis = 5> (x, k)",
        "y = Gather(k, x)",
        "y = Split <axis = 4> (k)",
        "y = Split(k)",
        "y = Reshape(x, x)",
        "y = Reshape(x)",
        "y = Conv(x, x)",
        "y = Conv(x)",
        "y = MaxPool(x)",
        "y = MaxPool <kernel_shape = [2, 2, 2]> (x)",
        "y = MaxPool <kernel_shape = [99], strides = [0]> (z)",
        "y = Conv <strides = [0]> (z, z)",
        "y = Slice(x, k)",
        "y = Slice(x, k, k, k, k)",
        "y = Range(k)",
        "y = Range(k, k, k)",
        "y = Div(k, k)",
        "d = Sub(k, k)  e = Div(k, d)  y = Reshape(x, e)",
        "d = Sub(k, k)  e = Mod(k, d)  y = Reshape(x, e)",
        "y = Cast <to = 'float'> (x)",
        "y = Cast <to = 9999> (x)",
        "y = Cast(x)",
        "y = Expand(x, minus)",
        "y = ConstantOfShape(minus)",
        "y = Tile(x, minus)",
        "y = Pad(x, k)",
        "y = Flatten <axis = 7> (x)",
        "y = ReduceSum <axes = [9]> (x)",
        "y = Einsum <equation = 'ab,c'> (x, x)",
        "y = Einsum(x)",
        "y = Add()",
        "y = Relu()",
        "y = NoSuchOperator(x)",
        "y = Loop(x)",
        "y = If(x)",
        "y = Scan(x)",
        "y = Attention(x)",
        "y = LSTM(x, x)",
        "y = SequenceAt(x, k)",
        "y = OneHot <axis = 9> (x, k, x)",
        "y = TopK <axis = 9> (x, k)",
        "y = Unsqueeze <axes = [0, 0]> (x)",
        "y = Resize(x, x, x)",
        "y = com.microsoft.Attention(x)",
    ],
)
def test_shapes_of_malformed_graphs_are_unknown(body: str) -> None:
    body = body.replace("'", '"')
    text = graph_text(f"""agraph (float[N, 4] x, float[1, 2, 3] z) => (float y)
        <int64[2] k = {{3, 5}}, int64[2] minus = {{-3, 2}}> {{ {body} }}""")
    facts, values = facts_of(text)
    shape = facts.shape(values["y"])
    assert shape is None or all(not isinstance(dim, int) or dim >= 0 for dim in shape)
    facts.contents(values["y"])


OPS = sorted(engine._RULES)
ATTRIBUTE = st.one_of(
    st.integers(-9, 9), st.lists(st.integers(-9, 9), max_size=4), st.text(max_size=3), st.floats(0, 2)
)


@pytest.mark.slow
@settings(max_examples=250)
@given(st.data())
def test_any_operator_with_any_inputs(data: st.DataObject) -> None:
    """Random shapes, constants and attributes, mostly invalid."""
    dims = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["N", "M", None])), max_size=4)
    inputs = [
        helper.make_tensor_value_info(f"x{index}", data.draw(st.sampled_from([1, 7, 9, 10])), data.draw(dims))
        for index in range(3)
    ]
    numbers = data.draw(st.lists(st.integers(-4, 6), max_size=4))
    constant = helper.make_tensor("k", TensorProto.INT64, [len(numbers)], numbers)
    nodes = list[onnx.NodeProto]()
    for index in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(OPS))
        domain, _, op_type = key.rpartition("::")
        names = st.sampled_from(["x0", "x1", "x2", "k", "", *(node.output[0] for node in nodes)])
        wanted = [
            "axis",
            "axes",
            "perm",
            "keepdims",
            "pads",
            "kernel_shape",
            "strides",
            "to",
            "split",
            "num_scan_inputs",
        ]
        given_ = data.draw(st.dictionaries(st.sampled_from(wanted), ATTRIBUTE, max_size=3))
        kinds: dict[str, Any] = {name: value for name, value in given_.items() if value != []}
        reads = data.draw(st.lists(names, max_size=5))
        made = [f"y{index}.{part}" for part in range(data.draw(st.integers(1, 3)))]
        nodes.append(helper.make_node(op_type, reads, made, domain=domain, **kinds))
    graph = helper.make_graph(
        nodes, "any", inputs, [helper.make_empty_tensor_value_info(nodes[-1].output[0])], [constant]
    )
    facts, values = facts_of(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", data.draw(st.integers(7, 23)))])
    )
    for value in values.values():
        shape, contents = facts.shape(value), facts.contents(value)
        assert shape is None or all(not isinstance(dim, int) or dim >= 0 for dim in shape)
        if contents is not None:
            assert shape is not None
            assert len(contents) == expr.product(shape)


def test_numbers_that_overflow_their_type_are_unknown() -> None:
    text = graph_text("""agraph (float[N] x) => (int64[1] y, int32[1] z, int64[1] w)
        <int64[1] big = {9223372036854775807}, int32[1] less = {2147483647}, int64[1] odd = {16777217}> {
            y = Add(big, big)  z = Mul(less, less)  f = Cast <to = 1> (odd)  w = Cast <to = 7> (f) }""")
    facts, values = facts_of(text)
    assert [facts.contents(values[name]) for name in "yzw"] == [(None,), (None,), (None,)]


# Cost


def chain(length: int, body: str) -> onnx.ModelProto:
    """The same piece `length` times in a row."""
    text = " ".join(body.replace("$", str(index + 1)).replace("@", str(index)) for index in range(length))
    head = f"agraph (float[N, 4] v0) => (float[A, B] v{length}) <int64[1] a = {{0}}, int64[1] four = {{4}}>"
    return onnx.parser.parse_model(graph_text(f"{head} {{ {text} }}"))


PIECE = """s$ = Shape(v@)  n$ = Gather(s$, a)  t$ = Concat <axis = 0> (n$, four)
    r$ = Reshape(v@, t$)  v$ = Add(r$, v@)"""


def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts how often the rules are called."""
    asked = list[ir.Node]()
    ask = Shapes.infer_outputs

    def outputs(self: Shapes, node: ir.Node) -> Any:
        asked.append(node)
        return ask(self, node)

    monkeypatch.setattr(Shapes, "infer_outputs", outputs)
    return lambda: len(asked)


def test_every_node_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch)
    facts, values = facts_of(chain(40, PIECE))
    assert asked() == 200
    facts.infer()
    for value in values.values():
        facts.shape(value)
        facts.contents(value)
    assert asked() == 200
    assert facts.shape(values["v40"]) == (N, 4)


def test_an_impossible_dimension_beside_an_unknown_one_makes_the_shape_unknown() -> None:
    facts, values = facts_of(
        graph_text("""agraph (float[?, 4] x) => (float[A, B] y) <int64[4] p = {0, -10, 0, 0}> { y = Pad(x, p) }""")
    )
    assert facts.shape(values["y"]) is None


def test_only_unknown_values_are_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = graph_text("""agraph (float[N, 4] x, int64[2] s) => (float[A, B] y) {
        a = Relu(x)  b = Reshape(a, s)  c = Neg(b)  d = Abs(a)  y = MatMul(c, d) }""")
    asked = counted(monkeypatch)
    facts, _ = facts_of(text)
    assert asked() == 5
    facts.infer()
    assert asked() == 5 + 3  # b, c and y


def test_an_unknown_is_known_after_a_rewrite_determines_it() -> None:
    facts, values = facts_of(
        graph_text("agraph (float[N, 4] x) => (float y) { a = Mystery(x)  b = Neg(a)  y = Abs(b) }")
    )
    assert facts.shape(values["y"]) is None
    facts.learn(values["a"], ir.DataType.FLOAT, (N, 4))
    producer = values["a"].producer()
    assert producer is not None
    producer.op_type = "Relu"
    facts.infer()
    assert facts.shape(values["y"]) == (N, 4)


@pytest.mark.slow
@pytest.mark.parametrize("body", [PIECE, "v$ = Relu(v@)"])
@pytest.mark.parametrize("first", ["shape", "infer", "contents"])
def test_deep_graphs_do_not_overflow_the_stack(body: str, first: str) -> None:
    """The first query is for the last value of a graph that is thousands of nodes deep."""
    graph = ir.from_proto(chain(1500, body))
    facts = Facts(graph)
    (last,) = graph.graph.outputs
    {"shape": facts.shape, "contents": facts.contents, "infer": lambda _: facts.infer()}[first](last)
    assert facts.shape(last) == (N, 4)


def test_deep_arithmetic_does_not_overflow_the_stack() -> None:
    steps = " ".join(f"f{index + 1} = Add(f{index}, one)" for index in range(2000))
    text = graph_text(f"""agraph (int64[1] v0) => (int64[1] z) <float[1] one = {{1}}> {{
        f0 = Cast <to = 1> (v0)  {steps}  z = Cast <to = 7> (f2000) }}""")
    facts, values = facts_of(text)
    assert facts.contents(values["z"]) in (None, (None,))


def test_a_size_that_a_later_reshape_cannot_copy_is_never_zero() -> None:
    """Attention flattens the heads of its keys, transposes and splits them again, with sizes read from the keys."""
    flattened = """agraph (float[B, 2, S, 64] k) => (float[B, 2, 64, S] y)
    <int64[1] left = {-1}, int64[1] width = {64}> {
        head = Shape <start = 0, end = 2> (k)  length = Shape <start = 2, end = 3> (k)
        flat = Concat <axis = 0> (left, length, width)  a = Reshape (k, flat)
        t = Transpose <perm = [0, 2, 1]> (a)
        full = Concat <axis = 0> (head, width, length)  y = Reshape (t, full) }"""
    shapes = shapes_of(graph_text(flattened))
    assert [str(dim) for dim in shapes["y"] or ()] == ["B", "2", "64", "S"]
    assert [str(dim) for dim in shapes["a"] or ()] == ["2*B", "S", "64"]
    other = flattened.replace("Reshape (t, full)", "Relu (t)").replace("[B, 2, 64, S]", "[P, Q, R]")
    alone = shapes_of(graph_text(other))
    assert [str(dim) for dim in alone["a"] or ()] != ["2*B", "S", "64"], "a length of 0 copies the number of heads"
    other = flattened.replace("64] k)", "64] k, float[T] o)").replace("width, length)  y", "width, more)  y")
    unlike = shapes_of(graph_text(other.replace("full =", "more = Shape (o)  full =").replace("64, S]", "64, T]")))
    assert [str(dim) for dim in unlike["a"] or ()] != ["2*B", "S", "64"], "the size that is not copied is another one"


# Sequences


BRANCHES = """agraph (float[N] x, bool c) => (bool[K] y) <int64 k = {0}> {
    s = If <then_branch = t () => (seq(float[A]) a) { a = SequenceConstruct(x) },
            else_branch = e () => (seq(float[B]) b) { b = SequenceConstruct(x, x) }> (c)
    v = SequenceAt(s, k)  y = Cast <to = 9> (v) }"""
TURNS = """agraph (float[N] x, int64 count, bool c, seq(float[M]) start) => (int64[K] y) <int64 k = {0}> {
    s = Loop <body = t (int64 i, bool d, seq(float[A]) a) => (bool e, seq(float[B]) b) {
        e = Identity(d)  b = SequenceInsert(a, x) }> (count, c, start)
    v = SequenceAt(s, k)  y = Cast <to = 7> (v) }"""


@pytest.mark.parametrize("text", [BRANCHES, TURNS], ids=["If", "Loop"])
def test_an_element_of_a_sequence_has_not_the_type_of_another_operand(text: str) -> None:
    """Of the condition of an If, or of the trip count of a Loop, which would make the Cast a no-op."""
    facts, values = facts_of(graph_text(text))
    assert facts.dtype(values["v"]) in (None, ir.DataType.FLOAT)


def test_the_cost_of_a_sum_is_linear_in_its_operands() -> None:
    def lines_run(count: int) -> int:
        operands = ", ".join(f"v{index}" for index in range(count))
        nodes = "  ".join(f"v{index} = Relu(x)" for index in range(count))
        model = onnx.parser.parse_model(
            graph_text(f"agraph (float[N, 4] x) => (float[N, 4] y) {{ {nodes}  y = Sum({operands}) }}")
        )
        lines = 0

        def trace(_frame: object, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        facts_of(model)
        sys.settrace(before)
        return lines

    assert lines_run(100) < 2.5 * lines_run(50)
