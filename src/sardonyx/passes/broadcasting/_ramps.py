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
from sardonyx.passes.base import optional, require, required

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
    memo: dict[ir.Value, Ramp | None] = {}  # since sums of shared values can have exponentially many paths

    def memoised(value: ir.Value | None, depth: int) -> Ramp | None:
        if value is not None and depth and value not in memo:
            memo[value] = compute(value, depth)
        return None if value is None or not depth else memo[value]

    @optional
    def compute(value: ir.Value, depth: int) -> Ramp:
        shape, contents, node = required(graph.shape(value)), graph.contents(value), value.producer()
        if contents is not None and len(contents) == 1:
            return Ramp(shape, (0,) * len(shape), required(contents[0]))
        node = required(node)
        require(not node.domain)
        if node.op_type == "Range":
            start, step = (required(graph.contents(node.inputs[place]) or None) for place in (0, 2))
            return Ramp(shape, (required(step[0]),), required(start[0]))
        source = required(memoised(operand(node, 0), depth - 1))
        if node.op_type == "Cast":
            require(node.attributes.get_int("to", 0) in _INTEGERS)
            return source
        if node.op_type in VIEWS:  # that insert or remove axes of size one
            axes = [(dim, step) for dim, step in zip(source.shape, source.steps, strict=True) if dim != 1]
            require([dim for dim in shape if dim != 1] == [dim for dim, _ in axes])
            steps = iter([step for _, step in axes])
            return Ramp(shape, tuple(0 if dim == 1 else next(steps) for dim in shape), source.start)
        if node.op_type == "Expand":
            return Ramp(shape, _aligned(source, shape), source.start)
        require(node.op_type in ("Add", "Sub", "Mul"))
        other = required(memoised(operand(node, 1), depth - 1))
        left, right = _aligned(source, shape), _aligned(other, shape)
        if node.op_type == "Mul":
            require(not (any(left) and any(right)))
            steps, factor = (left, other.start) if any(left) else (right, source.start)
            return Ramp(shape, tuple(multiply(step, factor) for step in steps), multiply(source.start, other.start))
        combine = add if node.op_type == "Add" else subtract
        return Ramp(shape, tuple(map(combine, left, right)), combine(source.start, other.start))

    return memoised(value, _MAX_DEPTH)


def _aligned(ramp: Ramp, shape: Shape) -> tuple[Dim, ...]:
    """Return the steps in the rank of a broadcast result; no match if an axis with a step may be repeated."""
    missing = len(shape) - len(ramp.shape)
    axes = zip(ramp.shape, ramp.steps, shape[missing:], strict=True)
    require(all(step == 0 or dim == goal for dim, step, goal in axes))
    return (0,) * missing + ramp.steps
