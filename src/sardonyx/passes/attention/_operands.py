"""Find queries, keys and values as [batch, heads, length, width] behind the views and repetitions that produce them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.passes._layout import (
    Axes,
    Axis,
    Conversion,
    Stage,
    Trail,
    conversion,
    refined,
    size,
    sizes,
    trace,
)
from sardonyx.passes.attention._scores import NearMiss

NOT_CONSTANT = "its operands need a Reshape whose target is not constant"


class Operand(Struct, frozen=True, eq=False):
    """The value to take queries, keys or values from, the steps that convert it, and the nodes that become unused."""

    stage: Stage
    steps: Conversion
    axes: Axes
    unused: tuple[ir.Node, ...]


class Layout(Struct, frozen=True, eq=False):
    """The operands in the form that Attention takes, and the conversion of its result to the original layout."""

    operands: tuple[Operand, Operand, Operand]
    back: Conversion
    shape: Shape  # of Attention's result
    heads: Axis | None  # of the queries; None if there is a single head without an axis
    batch: Dim
    width: Dim
    attributes: dict[str, int] = field(default_factory=dict[str, int])


class _Roles(Struct, frozen=True, eq=False):
    """The parts of an operand by role."""

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
    """Return the layout of attention between two products; the keys are transposed.

    Raises:
        NearMiss: the operands do not fit Attention.
    """
    # The scale of Attention is applied to the product. In half precision that could overflow where queries that are
    # scaled before the product do not.
    scales = queries is not None and graph.dtype(queries) == ir.DataType.FLOAT
    trails = [
        _followed(queries, first, graph, scales=scales),
        _followed(keys, first, graph, scales=scales),
        _followed(values, last, graph, scales=False),
    ]
    ranks = {len(trail.axes) for trail in trails}
    if ranks == {4}:
        return _layout_of([_of_four(trails[0]), _of_four(trails[1], keys=True), _of_four(trails[2])], trails, graph)
    if ranks != {3}:
        raise NearMiss("its operands differ in rank")
    roles = [_of_three(trails[0]), _of_three(trails[1], keys=True), _of_three(trails[2])]
    split = [_with_heads(role, trail) for role, trail in zip(roles, trails, strict=True)]
    counts = {size(role.heads or []) for role in split}
    if len(counts) == 1 and counts != {1}:
        try:
            return _layout_of(split, trails, graph)
        except NearMiss:  # treat everything as a single head
            pass
    return _layout_of(roles, trails, graph)


def _followed(value: ir.Value | None, node: ir.Node, graph: Facts, *, scales: bool) -> Trail:
    trail = None if value is None else trace(value, graph, node=node, scales=scales)
    if trail is None:
        raise NearMiss("the shape of an operand is unknown")
    return trail


def _of_four(trail: Trail, *, keys: bool = False) -> _Roles:
    batch, heads, length, width = trail.axes
    return _Roles(batch, heads, *((width, length) if keys else (length, width)))


def _of_three(trail: Trail, *, keys: bool = False) -> _Roles:
    batch, length, width = trail.axes
    return _Roles(batch, None, *((width, length) if keys else (length, width)))


def _with_heads(roles: _Roles, trail: Trail) -> _Roles:
    """Separate heads that were folded into the batch: the parts in front of the width where the trace begins."""
    batch, width = refined(roles.batch), refined(roles.width)
    heads: Axis = []
    for axis in map(refined, trail.source.axes):
        if width and width[0] in axis:
            before = axis[: axis.index(width[0])]
            while before and batch and before[-1] is batch[-1]:
                heads.insert(0, batch.pop())
                before.pop()
    return _Roles(batch, heads, roles.length, roles.width)


def _layout_of(roles: Sequence[_Roles], trails: Sequence[Trail], graph: Facts) -> Layout:
    queries, keys, values = roles
    batches = {size(role.batch) for role in roles}
    if len(batches) != 1:
        raise NearMiss("its operands may have different batch sizes")
    if size(keys.length) != size(values.length):
        raise NearMiss("keys and values may have different lengths")
    unrepeated = [_without_repetition(role, queries) for role in (keys, values)]
    if size(unrepeated[0].heads or []) != size(unrepeated[1].heads or []):
        raise NearMiss("keys and values are repeated for different groups of heads")
    operands = [_operand(role, trail, graph) for role, trail in zip((queries, *unrepeated), trails, strict=True)]
    result = [*queries.axes[:-1], values.width]
    before = [
        *([queries.batch] if queries.heads is None else _leading_axes(queries, trails[0])),
        queries.length,
        values.width,
    ]
    back = conversion(result, before)
    if back is None:
        raise NearMiss(NOT_CONSTANT)
    head_counts = {} if queries.heads is not None else {"q_num_heads": 1, "kv_num_heads": 1}
    return Layout(
        (operands[0], operands[1], operands[2]), back, sizes(result), queries.heads, size(queries.batch),
        size(queries.width), head_counts,
    )  # fmt: skip


def _leading_axes(queries: _Roles, trail: Trail) -> Axes:
    """Return the leading axes as the products have them."""
    return [queries.batch, queries.heads or []] if len(trail.axes) == 4 else [[*queries.batch, *(queries.heads or [])]]


def _without_repetition(roles: _Roles, queries: _Roles) -> _Roles:
    """Return keys or values without the repetition of their heads."""
    if roles.heads is None:
        return roles
    heads = refined(roles.heads)
    if size(heads) not in (1, size(queries.heads or [])):
        raise NearMiss("queries and keys may have different numbers of heads")
    while heads and heads[-1].repeats:
        heads.pop()
    return _Roles(roles.batch, heads, roles.length, roles.width)


def _operand(roles: _Roles, trail: Trail, graph: Facts) -> Operand:
    """Return the stage of the trace from which the conversion saves the most nodes."""
    best: Operand | None = None
    saved = 0
    for index, stage in enumerate(trail.stages):
        steps = conversion(stage.axes, roles.axes)
        if steps is None:
            continue
        saving = trail.dying(index) - len(steps)
        if best is None or saving > saved:
            best, saved = Operand(stage, steps, roles.axes, tuple(trail.nodes[:index])), saving
    if best is None:
        raise NearMiss(NOT_CONSTANT)
    return best
