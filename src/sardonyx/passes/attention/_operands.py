"""Finds queries, keys and values as [batch, heads, length, width], whatever views and repetitions made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.passes.attention._heads import Axes, Axis, Stage, Trail, fine, size, sizes, trace
from sardonyx.passes.attention._layouts import Steps, way
from sardonyx.passes.attention._scores import NearMiss

UNWRITABLE = "the shapes of its operands cannot be written down"


@dataclass(frozen=True, eq=False)
class Operand:
    """Where to take queries, keys or values from, how they get into shape, and which nodes that leaves without work."""

    stage: Stage
    steps: Steps
    axes: Axes
    gone: tuple[ir.Node, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The operands in the form that Attention takes, and the way back to what was there."""

    operands: tuple[Operand, Operand, Operand]
    back: Steps
    shape: Shape  # of Attention's result
    heads: Axis | None  # of the queries; None where all are one
    batch: Dim
    width: Dim
    attributes: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, eq=False)
class _Roles:
    """Which parts of an operand are what."""

    batch: Axis
    heads: Axis | None
    length: Axis
    width: Axis

    @property
    def axes(self) -> Axes:
        return [self.batch, *([] if self.heads is None else [self.heads]), self.length, self.width]


def read_layout(
    queries: ir.Value | None,
    keys: ir.Value | None,
    values: ir.Value | None,
    first: ir.Node,
    last: ir.Node,
    graph: Facts,
) -> Layout:
    """The layout of attention between two products, the keys being transposed.

    Raises:
        NearMiss: where the operands do not fit Attention.
    """
    # Attention has a scale for the scores only, which its kernel applies after the product: half precision could
    # overflow there where queries that are scaled before do not.
    scales = queries is not None and graph.dtype(queries) == ir.DataType.FLOAT
    trails = [
        _followed(queries, first, graph, scales=scales),
        _followed(keys, first, graph, scales=scales),
        _followed(values, last, graph, scales=False),
    ]
    ranks = {len(trail.axes) for trail in trails}
    if ranks == {4}:
        return _laid_out([_of_four(trails[0]), _of_four(trails[1], keys=True), _of_four(trails[2])], trails, graph)
    if ranks != {3}:
        raise NearMiss("its operands differ in rank")
    roles = [_of_three(trails[0]), _of_three(trails[1], keys=True), _of_three(trails[2])]
    split = [_heads_apart(each, trail) for each, trail in zip(roles, trails, strict=True)]
    counts = {size(each.heads or []) for each in split}
    if len(counts) == 1 and counts != {1}:
        try:
            return _laid_out(split, trails, graph)
        except NearMiss:  # then all are one head
            pass
    return _laid_out(roles, trails, graph)


def _followed(value: ir.Value | None, node: ir.Node, graph: Facts, *, scales: bool) -> Trail:
    trail = None if value is None else trace(value, graph, node=node, scales=scales)
    if trail is None:
        raise NearMiss("the shape of an operand is not known")
    return trail


def _of_four(trail: Trail, *, keys: bool = False) -> _Roles:
    batch, heads, length, width = trail.axes
    return _Roles(batch, heads, *((width, length) if keys else (length, width)))


def _of_three(trail: Trail, *, keys: bool = False) -> _Roles:
    batch, length, width = trail.axes
    return _Roles(batch, None, *((width, length) if keys else (length, width)))


def _heads_apart(roles: _Roles, trail: Trail) -> _Roles:
    """Heads that were folded into the batch: the parts that stand next to the width where the trail begins."""
    batch, width = fine(roles.batch), fine(roles.width)
    heads: Axis = []
    for axis in map(fine, trail.source.axes):
        if width and width[0] in axis:
            before = axis[: axis.index(width[0])]
            while before and batch and before[-1] is batch[-1]:
                heads.insert(0, batch.pop())
                before.pop()
    return _Roles(batch, heads, roles.length, roles.width)


def _laid_out(roles: Sequence[_Roles], trails: Sequence[Trail], graph: Facts) -> Layout:
    queries, keys, values = roles
    batches = {size(each.batch) for each in roles}
    if len(batches) != 1:
        raise NearMiss("its operands are not certain to have the same batch")
    if size(keys.length) != size(values.length):
        raise NearMiss("keys and values are not certain to be equally many")
    kept = [_once(each, queries) for each in (keys, values)]
    if size(kept[0].heads or []) != size(kept[1].heads or []):
        raise NearMiss("keys and values are repeated for other groups of heads")
    operands = [_operand(each, trail, graph) for each, trail in zip((queries, *kept), trails, strict=True)]
    result = [*queries.axes[:-1], values.width]
    before = [
        *([queries.batch] if queries.heads is None else _as_before(queries, trails[0])),
        queries.length,
        values.width,
    ]
    back = way(result, before)
    if back is None:
        raise NearMiss(UNWRITABLE)
    one = {} if queries.heads is not None else {"q_num_heads": 1, "kv_num_heads": 1}
    return Layout(
        (operands[0], operands[1], operands[2]), back, sizes(result), queries.heads, size(queries.batch),
        size(queries.width), one,
    )  # fmt: skip


def _as_before(queries: _Roles, trail: Trail) -> Axes:
    """The axes in front as the products had them."""
    return [queries.batch, queries.heads or []] if len(trail.axes) == 4 else [[*queries.batch, *(queries.heads or [])]]


def _once(roles: _Roles, queries: _Roles) -> _Roles:
    """Keys or values without the repetition of their heads."""
    if roles.heads is None:
        return roles
    heads = fine(roles.heads)
    if size(heads) not in (1, size(queries.heads or [])):
        raise NearMiss("queries and keys are not certain to have the same heads")
    while heads and heads[-1].repeats:
        heads.pop()
    return _Roles(roles.batch, heads, roles.length, roles.width)


def _operand(roles: _Roles, trail: Trail, graph: Facts) -> Operand:
    """From where on the trail it takes the fewest nodes."""
    best: Operand | None = None
    saved = 0
    for index, stage in enumerate(trail.stages):
        steps = way(stage.axes, roles.axes)
        if steps is None:
            continue
        saving = trail.dying(index, graph) - len(steps)
        if best is None or saving > saved:
            best, saved = Operand(stage, steps, roles.axes, tuple(trail.nodes[:index])), saving
    if best is None:
        raise NearMiss(UNWRITABLE)
    return best
