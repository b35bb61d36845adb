"""Axes as products of parts: follow a value through layout operators, and convert one layout into another.

Exporters split heads off and merge them in many ways: reshapes, transposes, flattened batches, repeated heads. Passes
do not match these forms one by one. They write every axis as a product of parts, such as batch, length, head and width,
and ask for the order of the parts.

Invariant: an axis [p1, p2, …, pn] has size p1.size * p2.size * … * pn.size, and its index is ((i1 * p2.size + i2) *
p3.size + i3) …, so that the last part varies fastest. The parts of all axes in order describe the order of the elements
in memory: a Transpose permutes axes, and a view (Reshape, Squeeze, Unsqueeze, Flatten) keeps the order of the parts and
only moves the borders between axes, splitting a part in two if a border falls inside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Builder
from sardonyx.ir.scopes import has_references, operand
from sardonyx.ir.shapes.expr import equal, exact_quotient, product
from sardonyx.passes._matching import optional, permutation, require, required, reshape_target, static, value_and_factor
from sardonyx.passes._parts import piece_of


class AxisPart:
    """A factor of an axis; parts are compared by identity.

    Splitting a part replaces it in every axis that contains it (see `refined`), so that layouts of the same value stay
    comparable.
    """

    __slots__ = ("finer", "picked", "repeats", "size")

    def __init__(self, size: Dim, *, repeats: bool = False, picked: int | None = None) -> None:
        """Create a part of this size.

        `repeats` marks a part along which the source is repeated, and `picked` one of which a single index is selected.
        """
        self.size = size
        self.repeats = repeats
        self.picked = picked
        self.finer: tuple[AxisPart, AxisPart] | None = None

    def split(self, outer: Dim, inner: Dim) -> tuple[AxisPart, AxisPart]:
        """Split the part into an outer and an inner one."""
        self.finer = (AxisPart(outer, repeats=self.repeats), AxisPart(inner, repeats=self.repeats))
        return self.finer


Axis = list[AxisPart]
Axes = list[Axis]


def new_axes(shape: Shape) -> Axes:
    """Return one new part for every dim; a dim of size one has none."""
    return [[] if dim == 1 else [AxisPart(dim)] for dim in shape]


def refined(axis: Iterable[AxisPart]) -> Axis:
    """Return the parts of an axis, each replaced by the parts it has been split into."""
    parts: Axis = []
    for part in axis:
        parts += [part] if part.finer is None else refined(part.finer)
    return parts


def flat(axes: Iterable[Iterable[AxisPart]]) -> Axis:
    """Return all parts in the order of the elements in memory."""
    return [part for axis in axes for part in refined(axis)]


def restricted(axes: Axes, parts: Iterable[AxisPart]) -> Axes | None:
    """Return the axes that consist of these parts, the others empty, or None if an axis has only some of them."""
    own = set(parts)
    whole = [refined(axis) for axis in axes]
    inside = [[part for part in axis if part in own] for axis in whole]
    return inside if all(not kept or kept == axis for kept, axis in zip(inside, whole, strict=True)) else None


def same_axes(first: Axes, second: Axes) -> bool:
    """Return whether two layouts are equal, dims of size one included."""
    return list(map(refined, first)) == list(map(refined, second))


def sizes(axes: Axes) -> Shape:
    """Return the shape of a layout."""
    return tuple(size(axis) for axis in axes)


def size(axis: Axis) -> Dim:
    """Return the size of an axis."""
    return product(part.size for part in refined(axis))


def regroup(parts: Axis, shape: Shape) -> Axes | None:
    """Assign the parts to the dims of another shape in the same element order, or return None if that is ambiguous.

    Parts are split as needed. Dims are matched from the front and then from the back; one dim that matches from neither
    end takes the remaining parts, unless it certainly has another size.
    """
    remaining, axes = deque(parts), list[Axis]()
    for dim in shape:
        taken = _take(remaining, dim, front=True)
        if taken is None:
            break
        axes.append(taken)
    rest, trailing = shape[len(axes) :], list[Axis]()
    for dim in reversed(rest[1:]):
        taken = _take(remaining, dim, front=False)
        if taken is None:
            return None
        trailing.insert(0, taken)
    if not rest:
        return None if remaining else axes
    left = list(remaining)
    return None if equal(rest[0], size(left)) is False else [*axes, left, *trailing]


def moved(axes: Axes, node: ir.Node, graph: Facts) -> Axes | None:
    """Return the axes after a view or Transpose, otherwise None."""
    if node.op_type == "Transpose":
        perm = permutation(node, graph)
        return [axes[axis] for axis in perm] if perm is not None and len(perm) == len(axes) else None
    shape = graph.shape(node.outputs[0])
    return regroup(flat(axes), shape) if node.op_type in VIEWS and shape is not None else None


def joined(source: Axis, result: Axis) -> tuple[Axis, Axis]:
    """Return two orders of parts with every run of parts that are adjacent in both replaced by one part."""
    source, result = refined(source), refined(result)
    runs = {run[0]: run for run in _runs(result, _places(source))}
    whole = {first: run[0] if len(run) == 1 else AxisPart(size(run)) for first, run in runs.items()}
    return [whole[part] for part in source if part in whole], list(whole.values())


def _take(parts: deque[AxisPart], dim: Dim, *, front: bool) -> Axis | None:
    """Remove the parts at one end that make up a dim and return them, or return None and remove nothing.

    At each step `need` is the part of the dim that is not covered yet: a whole part is taken if it divides `need`; a
    part that is a multiple of `need` is split.
    """
    if dim == 0:
        return None
    remaining, taken, need = deque(parts), list[AxisPart](), dim
    while need != 1:
        if not remaining:
            return None
        part = remaining.popleft() if front else remaining.pop()
        quotient, surplus = exact_quotient(need, part.size), exact_quotient(part.size, need)
        if quotient is not None:
            need = quotient
        elif surplus is not None and part.picked is None:
            halves = part.split(need, surplus) if front else part.split(surplus, need)
            part, rest = halves if front else reversed(halves)
            remaining.appendleft(rest) if front else remaining.append(rest)
            need = 1
        else:
            return None
        taken.append(part) if front else taken.insert(0, part)
    parts.clear()
    parts.extend(remaining)
    return taken


class Stage(Struct, eq=False):
    """A value on the path of a trace, with its axes written in parts."""

    value: ir.Value
    axes: Axes
    factor: float = 1.0  # the traced value is factor * this value


class Trail(Struct, eq=False):
    """A value and what it is computed from by views, transposes, repetition, selection and scaling, nearest first."""

    stages: list[Stage]
    nodes: list[ir.Node] = field(default_factory=list[ir.Node])  # nodes[i] computes stages[i] from stages[i + 1]

    @property
    def axes(self) -> Axes:
        """Return the axes of the traced value."""
        return self.stages[0].axes

    @property
    def source(self) -> Stage:
        """Return the stage where the trace ends."""
        return self.stages[-1]

    def dying(self, count: int) -> int:
        """Return how many of the nearest `count` nodes have no other consumer and go with the traced value."""
        for index, node in enumerate(self.nodes[:count]):
            value = self.stages[index].value
            if len(node.outputs) > 1 or len(value.uses()) != 1 or value.is_graph_output():
                return index
        return count

    def sources(self, layout: Callable[[Stage], Axes | None]) -> Iterator[Source]:
        """Yield the stages from which the traced value can be taken in another layout, nearest first."""
        for index, stage in enumerate(self.stages):
            goal = layout(stage)
            steps = None if goal is None else conversion(stage.axes, goal)
            if steps is not None:
                yield Source(stage, steps, tuple(self.nodes[:index]))


class Source(Struct, frozen=True, eq=False):
    """A stage to take a value from, the steps that convert it, and the nodes that compute the value from it now."""

    stage: Stage
    steps: Conversion
    nodes: tuple[ir.Node, ...]

    @property
    def picked(self) -> AxisPart | None:
        """Return the part of the stage of which a single index is selected."""
        return next((part for part in flat(self.stage.axes) if part.picked is not None), None)


def trace(value: ir.Value, graph: Facts, *, node: ir.Node, scales: bool) -> Trail | None:
    """Trace an operand of `node` back through views, transposes, repetition and selection.

    With `scales` also through multiplication and division by a scalar constant.
    """
    shape = graph.shape(value)
    if shape is None or 0 in shape:
        return None
    trail = Trail([Stage(value, new_axes(shape))])
    while True:
        last = trail.source
        producer = last.value.producer()
        if producer is None or producer.graph is not node.graph or producer.domain:
            return trail
        previous = _before(last, producer, graph, scales=scales)
        if previous is None:
            return trail
        trail.nodes.append(producer)
        trail.stages.append(previous)


@optional
def _before(stage: Stage, producer: ir.Node, graph: Facts, *, scales: bool) -> Stage:
    """Return the value that a node computes this stage from, with its axes in the same parts."""
    axes, op_type = stage.axes, producer.op_type
    require(not has_references(producer) and (scales or op_type not in ("Mul", "Div")))
    if op_type in ("Mul", "Div"):
        value, factor = required(value_and_factor(producer, graph))
        require(factor != 0)
        return Stage(value, axes, stage.factor * factor)
    source = required(operand(producer, 0))
    shape = required(graph.shape(source))
    require(0 not in shape)
    if op_type == "Transpose":
        perm = required(permutation(producer, graph))
        require(len(perm) == len(shape) == len(axes))
        axes = [axes[perm.index(axis)] for axis in range(len(shape))]
    elif op_type == "Expand":
        axes = required(_unrepeated(axes, graph.shape(stage.value) or (), shape))
    elif op_type == "Gather":  # of a single index: the gathered axis becomes a picked part
        axis = producer.attributes.get_int("axis", 0) % len(shape)
        place, count = required(graph.scalar(producer.inputs[1])), static(shape[axis])
        require(graph.rank(producer.inputs[1]) == 0 and count != 1)
        axes = [*axes[:axis], [AxisPart(count, picked=int(place) % count)], *axes[axis:]]
    elif op_type in ("Split", "Slice"):  # into equal pieces: [n * piece] becomes a picked part n and the piece
        piece = required(piece_of(stage.value, graph))
        axis, start, length = piece.axis, piece.positions.start, len(piece.positions)
        require(piece.positions.step == 1 and 0 < length < piece.size)
        require(piece.size % length == 0 and start % length == 0)
        axes = [*axes[:axis], [AxisPart(piece.size // length, picked=start // length), *axes[axis]], *axes[axis + 1 :]]
    else:
        axes = required(regroup(flat(axes), shape) if op_type in VIEWS else None)
    return Stage(source, axes, stage.factor)


def _unrepeated(axes: Axes, result: Shape, shape: Shape) -> Axes | None:
    """Return the axes before an Expand; the parts along which it repeats are marked."""
    missing = len(result) - len(shape)
    source_axes: Axes = []
    for axis, dim in enumerate(result):
        source_dim = shape[axis - missing] if axis >= missing else 1
        if source_dim != dim and source_dim != 1:
            return None
        if source_dim == 1 and dim != 1:
            for part in refined(axes[axis]):
                part.repeats = True
        if axis >= missing:
            source_axes.append([] if source_dim == 1 else axes[axis])
    return source_axes


class LayoutStep(Struct, frozen=True):
    """One node: a Reshape to `numbers`, a Transpose by them, or a Gather of them along `axis`."""

    operator: str
    numbers: tuple[int, ...] | np.ndarray
    shape: Shape | None = None  # of the result, if it is known
    axis: int = 0


Conversion = tuple[LayoutStep, ...]


def copies(steps: Conversion) -> int:
    """Return how many of the steps copy their input."""
    return sum(step.operator != "Reshape" for step in steps)


def convert(value: ir.Value, steps: Conversion, op: Builder, dtype: ir.DataType | None = None) -> ir.Value:
    """Build the steps and return the value in the new layout; `dtype` states what they return."""
    for step in steps:
        numbers = np.ascontiguousarray(step.numbers, np.int64)
        match step.operator:
            case "Reshape":
                value = op.Reshape(value, op.constant(numbers, "target"))
            case "Transpose":
                value = op.Transpose(value, perm=numbers.tolist())
            case _:
                value = op.Gather(value, op.constant(numbers, "rows"), axis=step.axis)
        if dtype is not None and step.shape is not None:
            op.learn(value, dtype, step.shape)
    return value


@optional
def conversion(source: Axes, target: Axes) -> Conversion:
    """Return the fewest nodes that convert one layout into another of the same parts.

    Equal order of parts needs at most a Reshape; otherwise a Transpose with up to two Reshapes around it. None if a
    Reshape has no constant target.
    """
    if flat(source) == flat(target):
        return _reshape(source, target)
    require(set(flat(source)) == set(flat(target)))
    split_axes, ordered = _pieces(source, target)
    perm: list[int] = []
    for axis in map(refined, ordered):
        perm += [i for i in range(len(split_axes)) if refined(split_axes[i]) == axis and i not in perm][:1]
    require(len(split_axes) == len(ordered) == len(perm))  # otherwise a part occurs more than once
    transpose = LayoutStep("Transpose", tuple(perm), sizes(ordered))
    return (*_reshape(source, split_axes), transpose, *_reshape(ordered, target))


def _reshape(source: Axes, target: Axes) -> Conversion:
    """Return the Reshape between two layouts with the same order of parts, if they differ."""
    if same_axes(source, target):
        return ()
    return (LayoutStep("Reshape", required(reshape_target(sizes(source), sizes(target))), sizes(target)),)


def _pieces(source: Axes, target: Axes) -> tuple[Axes, Axes]:
    """Return the axes that the Transpose permutes, in the order before and after it.

    If possible, both sides are the layouts themselves and need no Reshape, or the target is, or the source. Dims of
    size one are included for that.
    """
    source, target = ([refined(axis) for axis in axes] for axes in (source, target))
    in_source, in_target = (_places(flat(axes)) for axes in (source, target))
    before, after = (list(filter(None, axes)) for axes in (source, target))
    if len(source) == len(target) and sorted(before, key=lambda axis: in_target[axis[0]]) == after:
        return source, target
    if all(len(list(_runs(axis, in_source))) == 1 for axis in after):
        view = sorted(after, key=lambda axis: in_source[axis[0]])
        for index, axis in enumerate(target):
            if not axis:
                view.insert(min(index, len(view)), [])
        return view, target
    if all(len(list(_runs(axis, in_target))) == 1 for axis in before):
        return source, [*([] for axis in source if not axis), *sorted(before, key=lambda axis: in_target[axis[0]])]
    runs = list(_runs(flat(target), in_source))
    return sorted(runs, key=lambda run: in_source[run[0]]), runs


def _places(parts: Axis) -> dict[AxisPart, int]:
    """Return the position of each part."""
    return {part: place for place, part in enumerate(parts)}


def _runs(parts: Axis, places: Mapping[AxisPart, int]) -> Iterator[Axis]:
    """Return the longest runs of parts that are adjacent in another layout too."""
    run: Axis = []
    for part in parts:
        if run and places[part] != places[run[-1]] + 1:
            yield run
            run = []
        run.append(part)
    if run:
        yield run
