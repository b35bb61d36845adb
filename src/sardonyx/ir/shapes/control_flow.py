"""Shape rules for control flow: branches that agree, and loops whose state keeps its shape.

The state of a loop is inferred by induction: assume that it keeps the shape S0 it starts with, infer the body, replace
every dimension that the body changes by an unknown, and repeat until S(k+1) == S(k). Each step only weakens the
assumption, so the result holds in every iteration. An unknown dimension inside a body may be another number in each
iteration, so a fresh unknown takes its place outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import Shape, Typed, body, number, numbers
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes

_MAX_ITERATIONS = 4  # of the induction; after that the state may have any shape
_MAX_NESTED = 2  # nested loops for which the induction is tried: the iterations multiply
_COUNTER: Typed = (ir.DataType.INT64, ())
_CONDITION: Typed = (ir.DataType.BOOL, ())


def _branches(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return the dimensions on which both branches agree."""
    one, other = (body(node, name).outputs for name in ("then_branch", "else_branch"))
    return [_agreed(ask.shape(a), ask.shape(b), ask) for a, b in zip(one, other, strict=True)]


def _agreed(one: Shape | None, other: Shape | None, ask: Shapes) -> Shape | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else ask.unknown() for a, b in zip(one, other, strict=True))


def _loop(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    inner, state = body(node, "body"), node.inputs[2:]
    starts = [(None, None) if value is None else ask.typed(value) for value in state]
    state_shapes = _invariant_state(inner, [_COUNTER, _CONDITION], starts, [], 1, ask)
    scan_shapes = [_only_rank(ask.shape(value), ask) for value in inner.outputs[1 + len(state) :]]
    return [*state_shapes, *(None if shape is None else (ask.unknown(), *shape) for shape in scan_shapes)]


def _scan(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    inner, count = body(node, "body"), number(node, "num_scan_inputs", 0)
    if ask.opset(node) < 9:  # another operator, with batches
        return [None] * len(node.outputs)
    values = [value for value in node.inputs if value is not None]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    axes = numbers(node, "scan_input_axes") or [0] * count
    parts: list[Typed] = []
    length: Size = ask.unknown()
    for value, axis in zip(scanned, axes, strict=True):
        dtype, shape = ask.typed(value)
        if shape is None:
            parts.append((dtype, None))
            continue
        position = axis % len(shape)
        length = shape[position]
        parts.append((dtype, (*shape[:position], *shape[position + 1 :])))
    state_shapes = _invariant_state(inner, [], [ask.typed(value) for value in state], parts, 0, ask)
    scan_outputs = inner.outputs[len(state) :]
    axes = numbers(node, "scan_output_axes") or [0] * len(scan_outputs)
    return [
        *state_shapes,
        *(
            _with_axis(_without_unknowns(ask.shape(value), ask), length, axis)
            for value, axis in zip(scan_outputs, axes, strict=True)
        ),
    ]


def _with_axis(shape: Shape | None, length: Size, axis: int) -> Shape | None:
    if shape is None:
        return None
    position = axis % (len(shape) + 1)
    return (*shape[:position], length, *shape[position:])


def _invariant_state(
    inner: ir.Graph,
    before: Sequence[Typed],
    state: Sequence[Typed],
    after: Sequence[Typed],
    first: int,
    ask: Shapes,
) -> list[Shape | None]:
    """Return the shapes that the state has in every iteration; `first` is its index among the outputs of the body."""
    shapes, changing = [shape for _, shape in state], set[Size]()
    for _ in range(_MAX_ITERATIONS if ask.loops < _MAX_NESTED else 0):
        ask.assume(inner, [*before, *zip((dtype for dtype, _ in state), shapes, strict=True), *after])
        ask.loops += 1
        results = [ask.shape(value) for value in inner.outputs[first : first + len(state)]]
        ask.loops -= 1
        weaker = [_weakened(one, other, changing, ask) for one, other in zip(shapes, results, strict=True)]
        if weaker == shapes:
            return [
                None if shape is None else tuple(ask.unknown() if dim in changing else dim for dim in shape)
                for shape in shapes
            ]
        shapes = weaker
    ask.assume(inner, [*before, *((dtype, None) for dtype, _ in state), *after])
    return [None] * len(state)


def _weakened(shape: Shape | None, result: Shape | None, changing: set[Size], ask: Shapes) -> Shape | None:
    """Return the shape with a new unknown for each dimension that differs from the result of the body."""
    if shape is None or result is None or len(shape) != len(result):
        return None
    dims: list[Size] = []
    for dim, result_dim in zip(shape, result, strict=True):
        if dim != result_dim and dim not in changing:
            dim = ask.unknown()
            changing.add(dim)
        dims.append(dim)
    return tuple(dims)


def _only_rank(shape: Shape | None, ask: Shapes) -> Shape | None:
    """Return unknown dimensions: if a loop makes no iterations, the runtime sets them to 0."""
    return None if shape is None else tuple(ask.unknown() for _ in shape)


def _without_unknowns(shape: Shape | None, ask: Shapes) -> Shape | None:
    if shape is None:
        return None
    return tuple(ask.unknown() if isinstance(dim, expr.Expr) and dim.is_vague else dim for dim in shape)


RULES: Mapping[str, Rule] = {"If": _branches, "Loop": _loop, "Scan": _scan}
