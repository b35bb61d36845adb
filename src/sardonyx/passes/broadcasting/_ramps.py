"""Integer tensors that rise evenly along each axis, as a ramp: element [i, j, …] = start + i * step_0 + j * step_1 + ….

Positions, row numbers and flat indices are ramps, computed from ranges by views, sums and products. Starts, steps and
sizes may be symbolic. Ramps are closed under these operations:

- views that insert or remove axes of size one, and Expand, whose new axes have step 0
- sums and differences: starts and steps are added or subtracted
- products in which one factor is constant: start and steps are multiplied
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes.expr import add, at_least, multiply, product, subtract

_INTEGERS = (int(ir.DataType.INT32), int(ir.DataType.INT64))
_MAX_DEPTH = 16  # nodes to follow; exports have a handful


class Ramp(Struct, frozen=True):
    """A tensor given by its shape, its start and one step per axis; axes of size one have step 0."""

    shape: Shape
    steps: tuple[Dim, ...]
    start: Dim

    @property
    def counts(self) -> Dim | None:
        """Return the number of elements if they are 0, 1, 2, … in storage order, otherwise None.

        That is the case if start = 0 and every step equals the product of the sizes of the axes after it.
        """
        count: Dim = 1
        for dim, step in zip(reversed(self.shape), reversed(self.steps), strict=True):
            if dim != 1 and step != count:
                return None
            count = multiply(count, dim)
        return count if self.start == 0 else None

    @property
    def least(self) -> Dim | None:
        """Return a lower bound of the elements, or None if they may fall along an axis."""
        return self.start if all(at_least(step, 0) for step in self.steps) else None

    @property
    def most(self) -> Dim | None:
        """Return an upper bound of the elements if there are any, or None if they may fall along an axis."""
        if self.least is None:
            return None
        most = self.start
        for dim, step in zip(self.shape, self.steps, strict=True):
            most = add(most, multiply(step, subtract(dim, 1)))
        return most


def flat_ramp(places: Sequence[Ramp], sizes: Shape) -> Ramp | None:
    """Combine one index per axis of these sizes into the flat index sum_k place_k * (size_(k+1) * size_(k+2) * …).

    Returns None if an index may be negative and so count from the end.
    """
    shape = places[0].shape
    if any(place.shape != shape or place.least is None or not at_least(place.least, 0) for place in places):
        return None
    total = Ramp(shape, (0,) * len(shape), 0)
    for axis, place in enumerate(places):
        stride = product(sizes[axis + 1 :])
        steps = tuple(
            add(total_step, multiply(step, stride)) for total_step, step in zip(total.steps, place.steps, strict=True)
        )
        total = Ramp(shape, steps, add(total.start, multiply(place.start, stride)))
    return total


def ramp_of(value: ir.Value | None, graph: Facts) -> Ramp | None:
    """Return a value as a ramp, or None if it is not certainly one."""
    return _memoised_ramp(value, graph, {}, _MAX_DEPTH)


def _memoised_ramp(value: ir.Value | None, graph: Facts, memo: dict[ir.Value, Ramp | None], depth: int) -> Ramp | None:
    """Memoise `_ramp_of`, since sums of shared values can have exponentially many paths."""
    if value is None or depth == 0:
        return None
    if value not in memo:
        memo[value] = _ramp_of(value, graph, memo, depth)
    return memo[value]


def _ramp_of(value: ir.Value, graph: Facts, memo: dict[ir.Value, Ramp | None], depth: int) -> Ramp | None:
    shape, contents = graph.shape(value), graph.contents(value)
    if shape is None:
        return None
    if contents is not None and len(contents) == 1:
        return None if contents[0] is None else Ramp(shape, (0,) * len(shape), contents[0])
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Range":
        start, _, step = (_number(bound, graph) for bound in node.inputs)
        return None if start is None or step is None else Ramp(shape, (step,), start)
    source = _memoised_ramp(operand(node, 0), graph, memo, depth - 1)
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
    other = _memoised_ramp(operand(node, 1), graph, memo, depth - 1)
    return None if other is None else _combined(node.op_type, source, other, shape)


def _combined(op_type: str, left: Ramp, right: Ramp, shape: Shape) -> Ramp | None:
    left_steps, right_steps = _aligned(left, shape), _aligned(right, shape)
    if left_steps is None or right_steps is None:
        return None
    if op_type != "Mul":
        combine = add if op_type == "Add" else subtract
        steps = tuple(combine(*pair) for pair in zip(left_steps, right_steps, strict=True))
        return Ramp(shape, steps, combine(left.start, right.start))
    if any(left_steps) and any(right_steps):
        return None
    (steps, factor) = (left_steps, right.start) if any(left_steps) else (right_steps, left.start)
    return Ramp(shape, tuple(multiply(step, factor) for step in steps), multiply(left.start, right.start))


def _number(value: ir.Value | None, graph: Facts) -> Dim | None:
    contents = graph.contents(value)
    return contents[0] if contents is not None and len(contents) == 1 else None


def _aligned(ramp: Ramp, shape: Shape) -> tuple[Dim, ...] | None:
    """Return the steps in the rank of a broadcast result, or None if an axis with a step may be repeated."""
    missing = len(shape) - len(ramp.shape)
    for dim, step, goal in zip(ramp.shape, ramp.steps, shape[missing:], strict=True):
        if step != 0 and dim != goal:
            return None
    return (0,) * missing + ramp.steps


def _viewed(source: Ramp, shape: Shape) -> Ramp | None:
    """Return the ramp with axes of size one inserted or removed, or None for any other view."""
    axes = [(dim, step) for dim, step in zip(source.shape, source.steps, strict=True) if dim != 1]
    if [dim for dim in shape if dim != 1] != [dim for dim, _ in axes]:
        return None
    steps = iter([step for _, step in axes])
    return Ramp(shape, tuple(0 if dim == 1 else next(steps) for dim in shape), source.start)
