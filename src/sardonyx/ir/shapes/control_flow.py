"""Shape rules for control flow: branches that agree, and loops whose state keeps its shape.

The state of a loop is inferred by induction: assume that it keeps the shape S0 it starts with, infer the body, replace
every dimension that the body changes by an unknown, and repeat until S(k+1) == S(k). Each step only weakens the
assumption, so the result holds in every iteration. An unknown dimension inside a body may be another number in each
iteration, so a fresh unknown takes its place outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.node_view import NodeView, Shape, Typed
from sardonyx.ir.shapes.operators import OutputShapes, Rule

_MAX_ITERATIONS = 4  # of the induction; after that the state may have any shape
_MAX_NESTED = 2  # nested loops for which the induction is tried: the iterations multiply
_COUNTER: Typed = (ir.DataType.INT64, ())
_CONDITION: Typed = (ir.DataType.BOOL, ())


def _branches(node: NodeView) -> OutputShapes | None:
    """Return the dimensions on which both branches agree."""
    results: list[Shape | None] = []
    for values in zip(*(node.body(name).outputs for name in ("then_branch", "else_branch")), strict=True):
        one, other = map(node.ask.shape, values)
        if one is None or other is None or len(one) != len(other):
            results.append(None)
        else:
            results.append(tuple(a if a == b else node.ask.unknown() for a, b in zip(one, other, strict=True)))
    return results


def _loop(node: NodeView) -> OutputShapes | None:
    inner, state = node.body("body"), node.node.inputs[2:]
    starts = [(None, None) if value is None else node.ask.typed(value) for value in state]
    state_shapes = _invariant_state(node, inner, [_COUNTER, _CONDITION], starts, [], 1)
    # of scan outputs only the rank is known: if a loop makes no iterations, the runtime sets their dimensions to 0
    scan_shapes = [node.ask.shape(value) for value in inner.outputs[1 + len(state) :]]
    return [*state_shapes, *(None if shape is None else node.unknowns(1 + len(shape)) for shape in scan_shapes)]


def _scan(node: NodeView) -> OutputShapes | None:
    inner, count, ask = node.body("body"), node.number("num_scan_inputs", 0), node.ask
    if ask.opset(node.node) < 9:  # another operator, with batches
        return [None] * len(node.node.outputs)
    values = [value for value in node.node.inputs if value is not None]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    parts: list[Typed] = []
    length: Size = ask.unknown()
    for value, axis in zip(scanned, node.numbers("scan_input_axes") or [0] * count, strict=True):
        dtype, shape = ask.typed(value)
        if shape is not None:
            position = axis % len(shape)
            length = shape[position]
            shape = (*shape[:position], *shape[position + 1 :])
        parts.append((dtype, shape))
    results = _invariant_state(node, inner, [], [ask.typed(value) for value in state], parts, 0)
    outputs = inner.outputs[len(state) :]
    for value, axis in zip(outputs, node.numbers("scan_output_axes") or [0] * len(outputs), strict=True):
        shape = ask.shape(value)
        if shape is not None:
            dims = [ask.unknown() if isinstance(dim, expr.Expr) and dim.is_vague else dim for dim in shape]
            dims.insert(axis % (len(dims) + 1), length)
            shape = tuple(dims)
        results.append(shape)
    return results


def _invariant_state(
    node: NodeView,
    inner: ir.Graph,
    before: Sequence[Typed],
    state: Sequence[Typed],
    after: Sequence[Typed],
    first: int,
) -> list[Shape | None]:
    """Return the shapes that the state has in every iteration; `first` is its index among the outputs of the body."""
    ask = node.ask
    shapes, changing = [shape for _, shape in state], set[Size]()
    for _ in range(_MAX_ITERATIONS if ask.loops < _MAX_NESTED else 0):
        ask.assume(inner, [*before, *zip((dtype for dtype, _ in state), shapes, strict=True), *after])
        ask.loops += 1
        results = [ask.shape(value) for value in inner.outputs[first : first + len(state)]]
        ask.loops -= 1
        weaker = [_weakened(one, other, changing, node) for one, other in zip(shapes, results, strict=True)]
        if weaker == shapes:
            return [
                None if shape is None else tuple(ask.unknown() if dim in changing else dim for dim in shape)
                for shape in shapes
            ]
        shapes = weaker
    ask.assume(inner, [*before, *((dtype, None) for dtype, _ in state), *after])
    return [None] * len(state)


def _weakened(shape: Shape | None, result: Shape | None, changing: set[Size], node: NodeView) -> Shape | None:
    """Return the shape with a new unknown for each dimension that differs from the result of the body."""
    if shape is None or result is None or len(shape) != len(result):
        return None
    dims: list[Size] = []
    for dim, result_dim in zip(shape, result, strict=True):
        if dim != result_dim and dim not in changing:
            dim = node.ask.unknown()
            changing.add(dim)
        dims.append(dim)
    return tuple(dims)


RULES: Mapping[str, Rule] = {"If": _branches, "Loop": _loop, "Scan": _scan}
