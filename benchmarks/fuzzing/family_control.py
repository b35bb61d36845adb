"""Bodies of If, Loop and Scan whose names collide with outer ones, functions, and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing import running
from fuzzing.draft import F32, LOCAL, Draft, Rejected, Value, free_names, free_of_graph

UNARY = ("Exp", "Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max", "Min")


class Body(Draft):
    """A body in the making: it sees the outer values, and gives its own values names that outer ones have."""

    def __init__(self, outer: Draft) -> None:
        super().__init__(outer.rng, outer.opset)
        self.outer, self.values, self.functions = outer, dict(outer.values), outer.functions
        self.promised = outer.promised
        self.taken: set[str] = set()
        self.formal: list[tuple[str, Any]] = []
        self.decoration = 0.0
        self._operands: set[str] = set()  # of the node that is being added

    def fresh(self, stem: str = "v") -> str:
        """A name that the body does not have yet: for a parameter or an initializer one that an outer value may have.

        The runtime lets a node's output have the name only of an outer value that comes later: such names are promised.
        """
        kept = self.taken | self._operands | {name for node in self.nodes for name in free_names(node)}
        outside = [name for name in (*self.outer.values, *self.promised) if name not in kept]
        if stem in ("p", "i") and outside and self.chance(0.6):
            name = self.rng.choice(outside)
        else:
            self.promised.append(f"{stem}{len(self.promised)}b")
            name = self.promised[-1]
        self.taken.add(name)
        return name

    def const(self, array: Any, dtype: Any = None) -> Value:
        """A constant of the body, often an initializer named like an outer value."""
        if self.chance(0.5):
            return super().const(array, dtype)
        array = np.asarray(array, dtype)
        name = self.fresh("i")
        self.initializers.append(numpy_helper.from_array(array, name))
        return self._known(name, array)

    def ops(self, op_type: str, *inputs: Value | None, **more: Any) -> list[Value]:
        """A node of the body."""
        self._operands = {each.name for each in inputs if each is not None}
        for each in more.values():
            if isinstance(each, onnx.GraphProto):
                self._operands |= set(free_of_graph(each))
        return super().ops(op_type, *inputs, **more)

    def parameter(self, array: Any) -> Value:
        """An input of the body."""
        name = self.fresh("p")
        self.formal.append((name, array))
        return self._known(name, array)

    def graph(self, results: list[Value]) -> onnx.GraphProto:
        """The body, with its results by name; what it only passes on goes through Identity."""
        own = {name for node in self.nodes for name in node.output}
        named = []
        for each in results:
            if each.name in own and each.name not in named:
                named.append(each.name)
            else:
                made = self.fresh("r")
                self.nodes.append(helper.make_node("Identity", [each.name], [made]))
                self.values[made] = Value(made, each.array)
                named.append(made)
        inputs = [onnx.ValueInfoProto(name=name, type=_rankless(array)) for name, array in self.formal]
        outputs = [onnx.ValueInfoProto(name=name, type=_rankless(self.values[name].array)) for name in named]
        return helper.make_graph(self.nodes, "body", inputs, outputs, initializer=self.initializers)


def _rankless(array: Any) -> onnx.TypeProto:
    kind = running.type_of(array)
    if kind.HasField("tensor_type") and array.ndim:
        kind.tensor_type.ClearField("shape")
    return kind


def _wandered(body: Draft, pool: list[Value], steps: int) -> Value:
    """Some arithmetic over values of one shape."""
    made = body.rng.choice(pool)
    for _ in range(steps):
        kind = body.rng.random()
        if kind < 0.4:
            made = body.op(body.rng.choice(UNARY), made)
        elif kind < 0.8:
            made = body.op(body.rng.choice(BINARY), made, body.rng.choice(pool))
        elif kind < 0.9:
            made = body.op("Mul", made, body.const(body.rng.choice((0.5, 2.0, 1.0)), F32))
        else:
            made = body.transpose(body.transpose(made, 1, 0), 1, 0)
        pool.append(made)
    return made


def control(draft: Draft) -> None:
    """Bodies, one inside another, among equal expressions and constants outside."""
    rng = draft.rng
    dims = (draft.dim("N", 3), draft.dim("M", 2))
    pool = [draft.input(F32, dims), draft.input(F32, dims)]
    _wandered(draft, pool, rng.choice((2, 4)))
    for _ in range(rng.choice((1, 1, 2))):
        pool.append(_branching(draft, pool, rng.choice((1, 2))))
    _wandered(draft, pool, rng.choice((1, 3)))


def _branching(draft: Draft, pool: list[Value], depth: int) -> Value:
    visible = [each for each in pool if draft.values.get(each.name) is each]
    if not visible:
        raise Rejected("every value is shadowed")
    kind = draft.rng.choice(("if", "if", "loop", "loop", "scan"))
    if kind == "if":
        return _if(draft, visible, depth)
    return _loop(draft, visible, depth) if kind == "loop" else _scan(draft, visible)


def _inside(body: Body, pool: list[Value], depth: int) -> Value:
    reachable = [each for each in pool if body.values.get(each.name) is each]
    if not reachable:
        raise Rejected("every value is shadowed")
    made = _wandered(body, reachable, body.rng.choice((1, 2, 3)))
    if depth > 1 and body.chance(0.5):
        made = _branching(body, [*reachable, made], depth - 1)
    return made


def _flag(draft: Draft) -> Value:
    if isinstance(draft, Body) or draft.chance(0.3):
        return draft.const(np.array(draft.chance(0.5)))
    return draft.input(np.bool_, (), "flag")


def _if(draft: Draft, pool: list[Value], depth: int) -> Value:
    condition = _flag(draft)
    branches = []
    for _ in range(2):
        body = Body(draft)
        branches.append(body.graph([_inside(body, pool, depth)]))
    return draft.ops("If", condition, then_branch=branches[0], else_branch=branches[1])[0]


def _loop(draft: Draft, pool: list[Value], depth: int) -> Value:
    if isinstance(draft, Body) or draft.chance(0.4):
        trips = draft.const(draft.rng.choice((0, 1, 2, 3)), np.int64)
    else:
        trips = draft.input(np.int64, (), "count")
    start = draft.rng.choice(pool)
    proceed = draft.const(np.array(True)) if draft.chance(0.6) else None
    body = Body(draft)
    counter, going = body.parameter(np.array(0, np.int64)), body.parameter(np.array(True))
    state = body.parameter(start.array)
    made = _inside(body, [*pool, state, state], depth)
    if draft.chance(0.3):
        made = body.op("Add", made, body.cast(counter, F32))
    again = body.op("Identity", going)
    results = [again, made]
    scanned = draft.chance(0.4)
    if scanned:
        results.append(body.op("Neg", made))
    outputs = draft.ops("Loop", trips, proceed, start, outputs=2 if scanned else 1, body=body.graph(results))
    return outputs[0]


def _scan(draft: Draft, pool: list[Value]) -> Value:
    start, rows = draft.rng.choice(pool), draft.rng.choice(pool)
    if not rows.shape[0] or rows.array.ndim != 2:
        raise Rejected("no rows")
    body = Body(draft)
    state, row = body.parameter(start.array), body.parameter(rows.array[0])
    total = body.op("Add", state, row)
    made = _inside(body, [*pool, total], 1)
    graph = body.graph([made, body.op("Neg", row)])
    return draft.ops("Scan", start, rows, outputs=2, body=graph, num_scan_inputs=1)[0]


# ---------------------------------------------------------------------------------------------- functions


FUNCTIONS = (
    (("x", "y"), (("CastLike", ("x", "y"), "a"), ("Add", ("a", "y"), "z"))),
    (
        ("x", "y"),
        (("Cast", ("x",), "a", {"to": TensorProto.FLOAT}), ("CastLike", ("a", "y"), "b"), ("Mul", ("b", "y"), "z")),
    ),
    (("x", "y"), (("Identity", ("x",), "a"), ("Sub", ("a", "y"), "b"), ("Identity", ("b",), "z"))),
    (("x", "y"), (("Shape", ("x",), "s"), ("Reshape", ("y", "s"), "z"))),
    (("x", "y"), (("Neg", ("x",), "a"), ("Neg", ("x",), "b"), ("Mul", ("a", "b"), "c"), ("Add", ("c", "y"), "z"))),
    (("x", "y"), (("Transpose", ("x",), "a"), ("Transpose", ("a",), "b"), ("Max", ("b", "y"), "z"))),
    (("x", "y"), (("Softmax", ("x",), "a"), ("Clip", ("a",), "b"), ("Mul", ("b", "y"), "z"))),
)  # fmt: skip


def functions(draft: Draft) -> None:
    """A model-local function called twice with different types or shapes, with value_info that fits one call."""
    if draft.opset < 15:
        draft.opset = 18
    rng = draft.rng
    for number in range(rng.choice((1, 2))):
        parameters, body = rng.choice(FUNCTIONS)
        nodes = [helper.make_node(each[0], each[1], [each[2]], **(each[3] if len(each) > 3 else {})) for each in body]
        made = helper.make_function(
            LOCAL, f"f{number}", list(parameters), ["z"], nodes, [helper.make_opsetid("", draft.opset)]
        )
        if draft.chance(0.4):
            made.value_info.append(helper.make_tensor_value_info(body[0][2], TensorProto.FLOAT, ["N", 3]))
        draft.functions.append(made)
    kinds = (F32, np.float16, np.float64, np.int64, np.int32)
    for _ in range(rng.choice((2, 3))):
        name = f"f{rng.randrange(len(draft.functions))}"
        dims = rng.choice(((draft.dim("N", 2), 3), (3, draft.dim("N", 2))))
        x, y = draft.input(rng.choice(kinds), dims), draft.input(rng.choice(kinds), dims)
        try:
            called = draft.ops(name, x, y, domain=LOCAL)[0]
        except Rejected:
            y = draft.cast(y, x.dtype)
            called = draft.ops(name, x, y, domain=LOCAL)[0]
        if draft.chance(0.5):
            draft.op("Neg", called)


def sequences(draft: Draft) -> None:
    """Sequences built, split and read; a few strings."""
    rng = draft.rng
    if draft.opset < 11:
        draft.opset = rng.choice((11, 13, 18))
    x = draft.input(rng.choice((F32, np.int64)), (draft.dim("N", 4), 3))
    kind = rng.choice(("split", "split", "construct", "strings", "insert"))
    if kind == "strings":
        words = draft.input(np.dtype(object), (draft.dim("N", 4),))
        joined = draft.op("Concat", words, draft.const(np.array(["é", ""], object)), axis=0)
        draft.op("Identity", draft.op("Reshape", joined, draft.ints(1, -1)))
        draft.op("Equal", words, words)
    if kind == "construct":
        pieces = draft.ops("SequenceConstruct", x, draft.op("Neg", x))[0]
    elif kind == "insert":
        pieces = draft.ops("SequenceInsert", draft.ops("SequenceConstruct", x)[0], draft.op("Abs", x))[0]
    else:
        part = rng.choice((None, draft.const(2, np.int64), draft.const([1, 3], np.int64)))
        pieces = draft.ops("SplitToSequence", x, part, axis=rng.choice((0, 0, 1)), keepdims=rng.choice((0, 1)))[0]
    for _ in range(rng.choice((1, 2))):
        index = draft.const(rng.choice((0, 1, -1)), np.int64)
        draft.op("Relu" if x.dtype == F32 else "Neg", draft.ops("SequenceAt", pieces, index)[0])
    if draft.chance(0.4):
        draft.ops("ConcatFromSequence", pieces, axis=0, new_axis=rng.choice((0, 1)))
    if draft.chance(0.3):
        draft.op("Add", draft.ops("SequenceLength", pieces)[0], draft.const(1, np.int64))
