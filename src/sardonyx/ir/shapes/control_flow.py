"""What control flow makes of shapes: branches that agree, and loops whose state keeps its shape.

A loop is shown by induction: its state is assumed to keep the shape it starts with, and a dim that the body changes is
not known, until nothing changes. Unknown dims inside a body may be another number in each turn, so none leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import body, number, numbers
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import Rule, Shapely
from sardonyx.ir.shapes.queries import Ask, Shape, Typed

_TURNS = 4  # of assuming less; after that the state may have any shape
_NESTED = 2  # loops within each other whose bodies are gone through more than once: the turns of all of them multiply
_COUNTER: Typed = (ir.DataType.INT64, ())
_CONDITION: Typed = (ir.DataType.BOOL, ())


def _branches(node: ir.Node, ask: Ask) -> Shapely | None:
    """What both branches agree on."""
    one, other = (body(node, name).outputs for name in ("then_branch", "else_branch"))
    return [_agreed(ask.shape(a), ask.shape(b), ask) for a, b in zip(one, other, strict=True)]


def _agreed(one: Shape | None, other: Shape | None, ask: Ask) -> Shape | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else ask.unknown() for a, b in zip(one, other, strict=True))


def _loop(node: ir.Node, ask: Ask) -> Shapely | None:
    inner, state = body(node, "body"), node.inputs[2:]
    starts = [(None, None) if value is None else ask.typed(value) for value in state]
    kept = _steady(inner, [_COUNTER, _CONDITION], starts, [], 1, ask)
    gathered = [_only_rank(ask.shape(value), ask) for value in inner.outputs[1 + len(state) :]]
    return [*kept, *(None if shape is None else (ask.unknown(), *shape) for shape in gathered)]


def _scan(node: ir.Node, ask: Ask) -> Shapely | None:
    inner, count = body(node, "body"), number(node, "num_scan_inputs", 0)
    if ask.opset(node) < 9:  # another operator, with batches
        return [None] * len(node.outputs)
    values = [value for value in node.inputs if value is not None]
    state, read = values[: len(values) - count], values[len(values) - count :]
    axes = numbers(node, "scan_input_axes") or [0] * count
    parts: list[Typed] = []
    length: Size = ask.unknown()
    for value, axis in zip(read, axes, strict=True):
        dtype, shape = ask.typed(value)
        if shape is None:
            parts.append((dtype, None))
            continue
        place = axis % len(shape)
        length = shape[place]
        parts.append((dtype, (*shape[:place], *shape[place + 1 :])))
    kept = _steady(inner, [], [ask.typed(value) for value in state], parts, 0, ask)
    made = inner.outputs[len(state) :]
    axes = numbers(node, "scan_output_axes") or [0] * len(made)
    return [
        *kept,
        *(_joined(_outside(ask.shape(value), ask), length, axis) for value, axis in zip(made, axes, strict=True)),
    ]


def _joined(shape: Shape | None, length: Size, axis: int) -> Shape | None:
    if shape is None:
        return None
    place = axis % (len(shape) + 1)
    return (*shape[:place], length, *shape[place:])


def _steady(
    inner: ir.Graph, before: Sequence[Typed], state: Sequence[Typed], after: Sequence[Typed], first: int, ask: Ask
) -> list[Shape | None]:
    """The shapes the state has in every turn; `first` is its place among the body's outputs."""
    shapes, loose = [shape for _, shape in state], set[Size]()
    for _ in range(_TURNS if ask.loops < _NESTED else 0):
        ask.assume(inner, [*before, *zip((dtype for dtype, _ in state), shapes, strict=True), *after])
        ask.loops += 1
        results = [ask.shape(value) for value in inner.outputs[first : first + len(state)]]
        ask.loops -= 1
        weaker = [_weakened(one, other, loose, ask) for one, other in zip(shapes, results, strict=True)]
        if weaker == shapes:
            return [
                None if shape is None else tuple(ask.unknown() if d in loose else d for d in shape) for shape in shapes
            ]
        shapes = weaker
    ask.assume(inner, [*before, *((dtype, None) for dtype, _ in state), *after])
    return [None] * len(state)


def _weakened(shape: Shape | None, result: Shape | None, loose: set[Size], ask: Ask) -> Shape | None:
    if shape is None or result is None or len(shape) != len(result):
        return None
    dims: list[Size] = []
    for dim, made in zip(shape, result, strict=True):
        if dim != made and dim not in loose:
            dim = ask.unknown()
            loose.add(dim)
        dims.append(dim)
    return tuple(dims)


def _only_rank(shape: Shape | None, ask: Ask) -> Shape | None:
    """Without turns there is no element to tell the dims, and a runtime makes them zero."""
    return None if shape is None else tuple(ask.unknown() for _ in shape)


def _outside(shape: Shape | None, ask: Ask) -> Shape | None:
    if shape is None:
        return None
    return tuple(ask.unknown() if isinstance(dim, expr.Expr) and dim.is_vague else dim for dim in shape)


RULES: Mapping[str, Rule] = {"If": _branches, "Loop": _loop, "Scan": _scan}
