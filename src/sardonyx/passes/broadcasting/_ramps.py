"""Integer tensors that rise evenly along each axis: element [i, j, …] is start + i * step_i + j * step_j + ….

Positions, row numbers and flat indices are such, made of ranges by views, sums and products. Sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.shapes.expr import add, at_least, multiply, product, subtract
from sardonyx.passes._matching import operand

_INTEGERS = (int(ir.DataType.INT32), int(ir.DataType.INT64))
_DEEP = 16  # nodes to follow; what people write has a handful


@dataclass(frozen=True, slots=True)
class Ramp:
    """A tensor told by its start and one step an axis; axes of one element have step 0."""

    shape: Shape
    steps: tuple[Dim, ...]
    start: Dim

    @property
    def counts(self) -> Dim | None:
        """How many elements there are, where they are 0, 1, 2, … in the order they are stored; else None."""
        count: Dim = 1
        for dim, step in zip(reversed(self.shape), reversed(self.steps), strict=True):
            if dim != 1 and step != count:
                return None
            count = multiply(count, dim)
        return count if self.start == 0 else None

    @property
    def least(self) -> Dim | None:
        """No element is below this; None where some axis may fall."""
        return self.start if all(at_least(step, 0) for step in self.steps) else None

    @property
    def most(self) -> Dim | None:
        """No element is above this, where there are any; None where some axis may fall."""
        if self.least is None:
            return None
        most = self.start
        for dim, step in zip(self.shape, self.steps, strict=True):
            most = add(most, multiply(step, subtract(dim, 1)))
        return most


def flat_ramp(places: Sequence[Ramp], sizes: Shape) -> Ramp | None:
    """The place in a row of elements that several indices, one an axis of these sizes, stand for together.

    None where one may count from the end.
    """
    shape = places[0].shape
    if any(place.shape != shape or place.least is None or not at_least(place.least, 0) for place in places):
        return None
    total = Ramp(shape, (0,) * len(shape), 0)
    for axis, place in enumerate(places):
        by = product(sizes[axis + 1 :])
        steps = tuple(add(have, multiply(step, by)) for have, step in zip(total.steps, place.steps, strict=True))
        total = Ramp(shape, steps, add(total.start, multiply(place.start, by)))
    return total


def ramp_of(value: ir.Value | None, graph: Facts) -> Ramp | None:
    """What a value is as a ramp; None where it is none, or not certainly."""
    return _known_ramp(value, graph, {}, _DEEP)


def _known_ramp(value: ir.Value | None, graph: Facts, known: dict[ir.Value, Ramp | None], deep: int) -> Ramp | None:
    """Each value is looked at once: sums of shared values have more ways up than nodes."""
    if value is None or deep == 0:
        return None
    if value not in known:
        known[value] = _ramp_of(value, graph, known, deep)
    return known[value]


def _ramp_of(value: ir.Value, graph: Facts, known: dict[ir.Value, Ramp | None], deep: int) -> Ramp | None:
    shape, held = graph.shape(value), graph.contents(value)
    if shape is None:
        return None
    if held is not None and len(held) == 1:
        return None if held[0] is None else Ramp(shape, (0,) * len(shape), held[0])
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Range":
        start, _, step = (_number(each, graph) for each in node.inputs)
        return None if start is None or step is None else Ramp(shape, (step,), start)
    source = _known_ramp(operand(node, 0), graph, known, deep - 1)
    if source is None:
        return None
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) in _INTEGERS:
        return source
    if node.op_type in VIEWS:
        return _viewed(source, shape)
    if node.op_type not in ("Expand", "Add", "Sub", "Mul"):
        return None
    if node.op_type == "Expand":
        steps = _aligned(source, shape)
        return None if steps is None else Ramp(shape, steps, source.start)
    other = _known_ramp(operand(node, 1), graph, known, deep - 1)
    return None if other is None else _combined(node.op_type, source, other, shape)


def _combined(op_type: str, one: Ramp, two: Ramp, shape: Shape) -> Ramp | None:
    first, second = _aligned(one, shape), _aligned(two, shape)
    if first is None or second is None:
        return None
    if op_type != "Mul":
        combine = add if op_type == "Add" else subtract
        steps = tuple(combine(*pair) for pair in zip(first, second, strict=True))
        return Ramp(shape, steps, combine(one.start, two.start))
    if any(first) and any(second):
        return None
    (steps, by) = (first, two.start) if any(first) else (second, one.start)
    return Ramp(shape, tuple(multiply(step, by) for step in steps), multiply(one.start, two.start))


def _number(value: ir.Value | None, graph: Facts) -> Dim | None:
    held = graph.contents(value)
    return held[0] if held is not None and len(held) == 1 else None


def _aligned(ramp: Ramp, shape: Shape) -> tuple[Dim, ...] | None:
    """Steps as the result of a broadcast has them; None where an axis along which it rises might be repeated."""
    missing = len(shape) - len(ramp.shape)
    for dim, step, goal in zip(ramp.shape, ramp.steps, shape[missing:], strict=True):
        if step != 0 and dim != goal:
            return None
    return (0,) * missing + ramp.steps


def _viewed(source: Ramp, shape: Shape) -> Ramp | None:
    """The same elements with axes of one put in or taken out; None for any other view."""
    kept = [(dim, step) for dim, step in zip(source.shape, source.steps, strict=True) if dim != 1]
    if [dim for dim in shape if dim != 1] != [dim for dim, _ in kept]:
        return None
    steps = iter([step for _, step in kept])
    return Ramp(shape, tuple(0 if dim == 1 else next(steps) for dim in shape), source.start)
