"""Reshape(f(Reshape(x))) => f(x), for an f that works row by row.

Likewise Transpose(f(Transpose(x))). f consists of operators that work on single elements or along the last axis:
products with a matrix, biases, scales, activations, normalisations. Their constants are rearranged, and a Gemm, which
takes matrices only, becomes MatMul and Add. If the two moves do not cancel, their combination follows f. Refuses if
that saves no node, and if the last axis changes. Helps because exporters flatten a tensor before each projection and
unflatten it after.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import BINARY, SOFTMAXES, UNARY, VARIADIC, VIEWS
from sardonyx.ir.scopes import has_references, operand
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._layout import (
    Axes,
    Conversion,
    conversion,
    convert,
    flat,
    moved,
    new_axes,
    refined,
    restricted,
    sizes,
)
from sardonyx.passes._matching import optional, require, required, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, NoMatch, Replacement

MAX_NODES_BETWEEN = 12  # nodes between the two moves
_Constants = list[ir.TensorProtocol | None]  # a rearranged one for each step that has one


class _Chain(Struct, frozen=True, eq=False):
    """The steps between two moves, last step first."""

    first: ir.Node
    steps: tuple[RowStep, ...]
    last: ir.Node

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.first, *(step.node for step in reversed(self.steps)), self.last)

    @property
    def by_rows(self) -> bool:
        return any(step.by_rows for step in self.steps)


class EliminateLayoutRoundtrips(NodePass):
    """Moves before and after work that is done row by row."""

    accuracy = Accuracy.REASSOCIATES
    roots = (*sorted(VIEWS), "Transpose")
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            (float[N, M, 2] x) => (float[N, M, 3] y) <
                int64[2] rows = {-1, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9},
                int64[1] start = {0}, int64[1] end = {2}, int64[1] three = {3}
            > {
                a = Reshape(x, rows)  c = Gemm(a, w, b)  s = Shape(x)  n = Slice(s, start, end)
                t = Concat <axis = 0> (n, three)  d = Reshape <allowzero = 1> (c, t)  y = Relu(d)
            }
        """,
        after="""{
            c = MatMul(x, w)  d = Add(c, b)  s = Shape(x)  n = Slice(s, start, end)
            t = Concat <axis = 0> (n, three)  y = Relu(d)
        }""",
        near_miss="""
            (float[N, 4, 2] x) => (float[N, 4, 2] y)
            <int64[2] s = {-1, 8}, int64[3] t = {-1, 4, 2}> { a = Reshape(x, s)  b = Softmax(a)  y = Reshape(b, t) }
        """,
        refusal="the last axis changes",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        chain = _chain(node, graph)
        constants, after = _unmoved(chain, graph)
        gemms = (step.node for step in chain.steps if step.node.op_type == "Gemm")
        added = (1 if isinstance(after, ir.Value) else len(after)) + sum(operand(gemm, 2) is not None for gemm in gemms)
        keeps_first = graph.sole_consumer(chain.first.outputs[0]) is None
        require(added + keeps_first < 2, "it would save no node", *chain.nodes)
        return Match(chain.nodes, build=partial(_rewritten, chain, constants, after))


def _rewritten(chain: _Chain, constants: _Constants, after: Conversion | ir.Value, op: Builder) -> Replacement:
    """Apply the steps to the unmoved value, then the combination of the moves."""
    value = required(chain.first.inputs[0])
    for step, constant in zip(reversed(chain.steps), reversed(constants), strict=True):
        value = _rebuilt(step, value, constant, op)
    return op.Reshape(value, after) if isinstance(after, ir.Value) else convert(value, after, op)


def _chain(node: ir.Node, graph: Facts) -> _Chain:
    """Return the chain from a move back to the one before it."""
    kinds = {"Transpose"} if node.op_type == "Transpose" else VIEWS
    steps: list[RowStep] = []
    user, value = node, operand(node, 0)
    while len(steps) < MAX_NODES_BETWEEN:
        value = required(value)
        producer = required(value.producer())
        require(producer.graph is node.graph and not producer.domain)
        if producer.op_type in kinds and steps:
            required(operand(producer, 0))
            return _Chain(producer, tuple(steps), node)
        require(graph.sole_consumer(value) is user)
        step = None
        for place, source in enumerate(producer.inputs[:2]):  # the moved one is not a constant
            if step is None and source is not None and source.producer() is not None and graph.tensor(source) is None:
                step = _row_step(producer, place, graph)
        steps.append(required(step))
        user, value = producer, producer.inputs[steps[-1].place]
    raise NoMatch


def _unmoved(chain: _Chain, graph: Facts) -> tuple[_Constants, Conversion | ir.Value]:
    """Return the constants as the unmoved value needs them, and the steps that remain to be done, or their target."""
    first, last, nodes = chain.first, chain.last, chain.nodes
    source, _, end = (
        required(graph.shape(value) or None, "a shape is unknown", *nodes)
        for value in (first.inputs[0], first.outputs[0], last.inputs[0])
    )
    before = new_axes(source)
    after = required(moved(before, first, graph), "a shape is unknown", *nodes)
    keeps_last = not chain.by_rows or (len(before) > 1 and refined(before[-1]) == refined(after[-1]))
    require(keeps_last, "the last axis changes", *nodes)
    constants: _Constants = []
    for step in chain.steps:
        tensor = None if step.constant is None else graph.tensor(step.node.inputs[step.constant])
        constant = None if tensor is None else _moved_back(tensor, after, before, by_rows=chain.by_rows)
        require((tensor is None) == (constant is None), "a constant between them cannot be rearranged", *nodes)
        constants.append(constant)
    if chain.by_rows:
        before[-1] = after[-1] = new_axes(end)[-1]
    if last.op_type != "Transpose" and sizes(before) == graph.shape(last.outputs[0]):
        return constants, ()
    target = operand(last, 1) if last.op_type == "Reshape" else None
    numbers = graph.ints(target)
    if target is not None and numbers is not None and 0 not in numbers:
        return constants, target
    goal = moved(after, last, graph)
    steps = None if goal is None else conversion(before, goal)
    return constants, required(steps, "the combined target is not constant", *nodes)


def _moved_back(constant: ir.TensorProtocol, after: Axes, before: Axes, *, by_rows: bool) -> ir.TensorProtocol | None:
    """Rearrange a constant that is combined with a moved value so that it fits the value before the move.

    With `by_rows` the last axis stays where it is, with the size that it has at this step.
    """
    if constant.size == 1:
        return reshaped(constant, ())
    shape = constant.shape.numpy()
    dims = (*(1,) * (len(after) - len(shape)), *shape)
    if by_rows:
        *_, last = new_axes(dims)
        after, before = [*after[:-1], last], [*before[:-1], last]
    own = [[] if dim == 1 else axis for dim, axis in zip(dims, after, strict=True)]
    goal = restricted(before, flat(own))
    steps = None if goal is None or sizes(own) != dims else conversion(own, goal)
    if steps is None:
        return None
    constant = reshaped(constant, dims)
    for step in steps:
        numbers = tuple(map(int, step.numbers))
        constant = transposed(constant, numbers) if step.operator == "Transpose" else reshaped(constant, numbers)
    return constant


# Operators that work row by row or element by element, so that a view or Transpose can move across them.
#
# Their other operands (a bias, a scale) have to fit after the move: a vector along the last axis stays as it is, and a
# larger constant is reshaped or transposed.

PAIRWISE = BINARY | VARIADIC
ALONG_ROWS = SOFTMAXES | {"LayerNormalization", "RMSNormalization"}
NEGATIVE_AXES_SINCE = 11


class RowStep(Struct, frozen=True, eq=False):
    """A node that gives the same result before a move as after it."""

    node: ir.Node
    place: int  # the input that is moved
    by_rows: bool  # requires that the move keeps the last axis
    constant: int | None = None  # a constant input that has to be rearranged


@optional
def _row_step(node: ir.Node, place: int, graph: Facts) -> RowStep:
    """Return how a node works on one of its operands if it does so row by row or element by element."""
    attributes, rank = node.attributes, graph.rank(node.inputs[place])
    require(not has_references(node))
    if node.op_type in PAIRWISE:
        return _pairwise(node, place, graph)
    require(place == 0)
    if node.op_type in UNARY:
        return RowStep(node, 0, by_rows=False)
    if node.op_type == "MatMul":
        require(graph.rank(node.inputs[1]) == 2 and (rank or 0) >= 2)
    elif node.op_type == "Gemm":  # x @ W + b with x not transposed, no scaling, and b a row
        bias = operand(node, 2)
        shape = graph.shape(bias) if bias is not None else ()
        require(all(attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")))
        require(not attributes.get_int("transA", 0) and all(dim == 1 for dim in required(shape)[:-1]))
    else:
        require(node.op_type in ALONG_ROWS and len(node.outputs) == 1 and graph.opset(node) >= NEGATIVE_AXES_SINCE)
        default = 1 if node.op_type.endswith("max") and graph.opset(node) < 13 else -1
        require(attributes.get_int("axis", default) in (-1, required(rank) - 1))
        require(all(graph.rank(value) in (0, 1) for value in node.inputs[1:] if value is not None))
    return RowStep(node, 0, by_rows=True)


def _pairwise(node: ir.Node, place: int, graph: Facts) -> RowStep:
    require(len(node.inputs) == 2)
    value, other = node.inputs[place], required(node.inputs[1 - place])
    shape, rank = required(graph.shape(other)), required(graph.rank(value))
    require(other is not value and len(shape) <= rank and graph.same_shape(value, node.outputs[0]))
    if not shape:
        return RowStep(node, place, by_rows=False)
    if graph.array(other) is not None and graph.dtype(other) is not ir.DataType.STRING:
        return RowStep(node, place, by_rows=False, constant=1 - place)
    require(len(shape) == 1)
    return RowStep(node, place, by_rows=True)


def _rebuilt(step: RowStep, value: ir.Value, constant: ir.TensorProtocol | None, op: Builder) -> ir.Value:
    """Apply the same step to another value; a Gemm becomes MatMul and Add, which accept any rank."""
    node = step.node
    if node.op_type == "Gemm":
        weight = node.inputs[1]
        if node.attributes.get_int("transB", 0):
            weight = op.Transpose(weight, perm=[1, 0])
        product, bias = op.MatMul(value, weight), operand(node, 2)
        return product if bias is None else op.Add(product, bias)
    inputs = with_operand(node, step.place, value)
    if step.constant is not None and constant is not None:
        inputs = (*inputs[: step.constant], op.constant(constant), *inputs[step.constant + 1 :])
    changed = {"axis": -1} if node.op_type in ALONG_ROWS else {}
    return op.like(node, inputs, **changed)
