"""Follows the axes of a value back through views, transposes, repetition and picking, as parts.

How heads are split off and merged is spelled in many ways: reshapes, transposes, flattened batches, repeated heads. So
passes do not match these spellings; they ask which *parts* (batch, length, head, width) stand in which order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.shapes.expr import exact_quotient, product
from sardonyx.passes._matching import operand


class Part:
    """A factor of an axis: runs slower than those after it. Splitting one refines it wherever it stands."""

    __slots__ = ("finer", "picked", "repeats", "size")

    def __init__(self, size: Dim, *, repeats: bool = False, picked: int | None = None) -> None:
        """`repeats` where the source has it once only; `picked` is the one place of it that is taken."""
        self.size = size
        self.repeats = repeats
        self.picked = picked
        self.finer: tuple[Part, Part] | None = None

    def split(self, outer: Dim, inner: Dim) -> tuple[Part, Part]:
        """As two parts."""
        self.finer = (Part(outer, repeats=self.repeats), Part(inner, repeats=self.repeats))
        return self.finer


Axis = list[Part]
Axes = list[Axis]


def new_axes(shape: Shape) -> Axes:
    """Every dim a part of its own; dims of one have none."""
    return [[] if dim == 1 else [Part(dim)] for dim in shape]


def fine(axis: Iterable[Part]) -> Axis:
    """The parts as they have been split by now."""
    found: Axis = []
    for part in axis:
        found += [part] if part.finer is None else fine(part.finer)
    return found


def flat(axes: Iterable[Iterable[Part]]) -> Axis:
    """All parts in the order of the elements in memory."""
    return [part for axis in axes for part in fine(axis)]


def same_axes(one: Axes, other: Axes) -> bool:
    """Whether two layouts are the same, dims of one included."""
    return list(map(fine, one)) == list(map(fine, other))


def sizes(axes: Axes) -> Shape:
    """The shape."""
    return tuple(size(axis) for axis in axes)


def size(axis: Axis) -> Dim:
    """How long an axis is."""
    return product(part.size for part in fine(axis))


def regroup(parts: Axis, shape: Shape) -> Axes | None:
    """The same elements in another shape: each dim gets its parts, split where needed; None where that is not clear.

    One dim may be left that could not be told from either end: it takes what is over.
    """
    left, axes = deque(parts), list[Axis]()
    for dim in shape:
        taken = _take(left, dim, front=True)
        if taken is None:
            break
        axes.append(taken)
    rest, behind = shape[len(axes) :], list[Axis]()
    for dim in reversed(rest[1:]):
        taken = _take(left, dim, front=False)
        if taken is None:
            return None
        behind.insert(0, taken)
    if not rest:
        return None if left else axes
    return [*axes, list(left), *behind]


def _take(left: deque[Part], dim: Dim, *, front: bool) -> Axis | None:
    """The parts at one end that make up a dim, taken off; None, and nothing taken, where none do."""
    if dim == 0:
        return None
    open_parts, taken, need = deque(left), list[Part](), dim
    while need != 1:
        if not open_parts:
            return None
        part = open_parts.popleft() if front else open_parts.pop()
        whole, over = exact_quotient(need, part.size), exact_quotient(part.size, need)
        if whole is not None:
            need = whole
        elif over is not None and part.picked is None:
            halves = part.split(need, over) if front else part.split(over, need)
            part, kept = halves if front else reversed(halves)
            open_parts.appendleft(kept) if front else open_parts.append(kept)
            need = 1
        else:
            return None
        taken.append(part) if front else taken.insert(0, part)
    left.clear()
    left.extend(open_parts)
    return taken


@dataclass(eq=False)
class Stage:
    """A value on the way, and how its axes are made of the parts."""

    value: ir.Value
    axes: Axes
    factor: float = 1.0  # what the traced value is of this one

    @property
    def picks(self) -> bool:
        """Whether the traced value is but a piece of this one."""
        return any(part.picked is not None for part in flat(self.axes))


@dataclass(eq=False)
class Trail:
    """A value and what it was made of by views, transposes, repetition and scaling alone, nearest first."""

    stages: list[Stage]
    nodes: list[ir.Node] = field(default_factory=list[ir.Node])  # nodes[i] makes stages[i] of stages[i + 1]

    @property
    def axes(self) -> Axes:
        """Of the value itself."""
        return self.stages[0].axes

    @property
    def source(self) -> Stage:
        """The value where the trail ends."""
        return self.stages[-1]

    def dying(self, count: int, graph: Facts) -> int:
        """How many of the nearest `count` nodes nothing else needs."""
        for index, node in enumerate(self.nodes[:count]):
            made = self.stages[index].value
            if len(node.outputs) > 1 or len(made.uses()) != 1 or made.is_graph_output():
                return index
        return count


def trace(value: ir.Value, graph: Facts, *, node: ir.Node, scales: bool) -> Trail | None:
    """Follow a value that `node` reads as far back as views, transposes, repetition and (`scales`) constants go."""
    shape = graph.shape(value)
    if shape is None or 0 in shape:
        return None
    trail = Trail([Stage(value, new_axes(shape))])
    while True:
        last = trail.source
        made = last.value.producer()
        if made is None or made.graph is not node.graph or made.domain:
            return trail
        before = _before(last, made, graph, scales=scales)
        if before is None:
            return trail
        trail.nodes.append(made)
        trail.stages.append(before)


def _before(stage: Stage, made: ir.Node, graph: Facts, *, scales: bool) -> Stage | None:
    """The value that a node made this one of."""
    if any(attribute.is_ref() for attribute in made.attributes.values()):
        return None
    if made.op_type in ("Mul", "Div"):
        return _unscaled(stage, made, graph) if scales else None
    source = operand(made, 0)
    shape = graph.shape(source)
    if source is None or shape is None or 0 in shape:
        return None
    match made.op_type:
        case "Transpose":
            perm = made.attributes.get_ints("perm", tuple(reversed(range(len(shape)))))
            axes: Axes | None = [stage.axes[perm.index(axis)] for axis in range(len(shape))]
        case "Expand":
            axes = _unrepeated(stage.axes, graph.shape(stage.value) or (), shape)
        case "Gather":
            axes = _unpicked(stage.axes, made, shape, graph)
        case "Split" | "Slice":
            axes = _uncut(stage, made, shape, graph)
        case kind if kind in VIEWS:
            axes = regroup(flat(stage.axes), shape)
        case _:
            return None
    return None if axes is None else Stage(source, axes, stage.factor)


def _unscaled(stage: Stage, made: ir.Node, graph: Facts) -> Stage | None:
    for side in (0, 1) if made.op_type == "Mul" else (1,):
        by, source = graph.scalar(made.inputs[side]), made.inputs[1 - side]
        if by and source is not None and graph.same_shape(source, stage.value):
            factor = stage.factor * by if made.op_type == "Mul" else stage.factor / by
            return Stage(source, stage.axes, factor)
    return None


def _unrepeated(axes: Axes, result: Shape, shape: Shape) -> Axes | None:
    """The axes of what was expanded; the parts it did not have are marked."""
    missing = len(result) - len(shape)
    found: Axes = []
    for axis, dim in enumerate(result):
        has = shape[axis - missing] if axis >= missing else 1
        if has != dim and has != 1:
            return None
        if has == 1 and dim != 1:
            for part in fine(axes[axis]):
                part.repeats = True
        if axis >= missing:
            found.append([] if has == 1 else axes[axis])
    return found


def _unpicked(axes: Axes, made: ir.Node, shape: Shape, graph: Facts) -> Axes | None:
    """The axes of what a Gather takes one place of."""
    place, axis = graph.scalar(made.inputs[1]), made.attributes.get_int("axis", 0) % len(shape)
    count = shape[axis]
    if place is None or graph.rank(made.inputs[1]) != 0 or not isinstance(count, int) or count == 1:
        return None
    return [*axes[:axis], [Part(count, picked=int(place) % count)], *axes[axis:]]


def _uncut(stage: Stage, made: ir.Node, shape: Shape, graph: Facts) -> Axes | None:
    """The axes of what was cut into equal pieces, of which this is one."""
    if made.op_type == "Split":
        axis, start = made.attributes.get_int("axis", 0) % len(shape), 0
        for output in made.outputs[: stage.value.index()]:
            before = (graph.shape(output) or (None,) * len(shape))[axis]
            if not isinstance(before, int):
                return None
            start += before
    else:
        starts, axes, steps = graph.ints(operand(made, 1)), graph.ints(operand(made, 3)), graph.ints(operand(made, 4))
        if starts is None or axes is None or len(axes) != 1 or len(starts) != 1 or steps not in (None, (1,)):
            return None
        axis, start = axes[0] % len(shape), starts[0]
    piece, whole = (graph.shape(stage.value) or ())[axis], shape[axis]
    if not isinstance(piece, int) or not isinstance(whole, int) or whole == piece or whole % piece:
        return None
    start = start + whole if start < 0 else start
    if start % piece or not 0 <= start < whole:
        return None
    picked = Part(whole // piece, picked=start // piece)
    return [*stage.axes[:axis], [picked, *stage.axes[axis]], *stage.axes[axis + 1 :]]
