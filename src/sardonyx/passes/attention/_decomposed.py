"""Decomposed attention: what is applied to its scores before the Softmax, and what its operands are.

The scores are read from the Softmax upwards. With S = Q K^T the result is Softmax(mask_n(… mask_1(cap(scale * S)))),
where cap(x) = c * tanh(x / c); every mask is a sum or a Where. Scale, cap and masks have to be in this order, which is
the order in which Attention applies them. Queries, keys and values are read as [batch, heads, length, width] behind the
views and repetitions that produce them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.passes._layout import (
    Axes,
    Axis,
    Conversion,
    Stage,
    Trail,
    conversion,
    flat,
    new_axes,
    refined,
    regroup,
    same_axes,
    size,
    sizes,
    trace,
)
from sardonyx.passes._matching import producer_of

MOST_NODES = 256  # visited above one Softmax, since sums of shared values can have exponentially many paths
SWALLOWS = 1e30  # adding a score to a number of this magnitude leaves the number unchanged


class NearMiss(Exception):
    """Raised for attention that cannot be fused; the message says why."""


class Mask(Struct, frozen=True):
    """A value that is added to the scores, or a condition under which they are kept."""

    value: ir.Value
    axes: Axes  # in parts of the scores
    keeps: bool | None = None  # for a condition: the truth value that keeps a score
    fill: float = 0.0  # for a condition: what replaces the other scores


class Scores(Struct, frozen=True):
    """The scores that a Softmax reads, decomposed."""

    nodes: tuple[ir.Node, ...]  # from the Softmax up to the product
    axes: Axes  # of the current value, in parts of the Softmax's input
    whole: Axes  # of the Softmax's input
    budget: Iterator[int]  # one step for each node that may still be visited
    masks: tuple[Mask, ...] = ()
    scale: float = 1.0
    softcap: float = 0.0
    precision: ir.DataType | None = None

    @property
    def product(self) -> ir.Node:
        """Return the product of queries and keys."""
        return self.nodes[-1]


def read_scores(softmax: ir.Node, graph: Facts) -> Scores | None:
    """Decompose what a Softmax over the last axis reads, or return None if it is not a product of queries and keys.

    Raises:
        NearMiss: it is one, but Attention cannot compute it.
    """
    shape = graph.shape(softmax.inputs[0])
    if shape is None or 0 in shape:
        return None
    axes = new_axes(shape)
    return _above(softmax.inputs[0], softmax, Scores((), axes, axes, iter(range(MOST_NODES))), graph)


def _above(value: ir.Value | None, user: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    """Read the producer of a value; `below` is what has been read between it and the Softmax."""
    producer = producer_of(value, user, _READERS)
    if value is None or producer is None or next(below.budget, None) is None:
        return None
    scores = _READERS[producer.op_type](producer, replace(below, nodes=(*below.nodes, producer)), graph)
    if scores is not None and graph.sole_consumer(value) is not user:
        raise NearMiss("its scores are read elsewhere")
    return scores


def _product(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    """Accept the product itself. A product with a constant is a linear layer."""
    if any(graph.tensor(value) is not None for value in node.inputs[:2]):
        return None
    if not same_axes(below.axes, below.whole):
        raise NearMiss("its scores are reshaped before the Softmax")
    return below


def _cast(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    scores = _above(operand(node, 0), node, below, graph)
    if scores is None:
        return None
    to, source = node.attributes.get_int("to", 0), graph.dtype(operand(node, 0))
    if to != ir.DataType.FLOAT or source != ir.DataType.FLOAT16 or len(below.nodes) > 1:
        raise NearMiss("its scores are cast to another type before the Softmax")
    return replace(scores, precision=ir.DataType.FLOAT)


def _sum(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    near_miss: NearMiss | None = None
    for side in (0, 1):
        mask = operand(node, 1 - side)
        if mask is None:
            continue
        try:
            scores = _above(operand(node, side), node, below, graph)
            if scores is not None:
                _unscaled(below)
                return replace(scores, masks=(*scores.masks, Mask(mask, _mask_axes(mask, side, node, below, graph))))
        except NearMiss as reason:  # the other operand may be the scores and this one the mask
            near_miss = near_miss or reason
    if near_miss is not None:
        raise near_miss
    return None


def _where(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    condition = operand(node, 0)
    for side in (1, 2):
        fill = graph.scalar(operand(node, 3 - side))
        if fill is None or condition is None:
            continue
        scores = _above(operand(node, side), node, below, graph)
        if scores is None:
            continue
        _unscaled(below)
        if fill > -SWALLOWS or (graph.dtype(node.outputs[0]) != ir.DataType.FLOAT and fill != float("-inf")):
            raise NearMiss("masked scores keep some weight, so the result of a fully masked row would change")
        axes = _mask_axes(condition, side, node, below, graph)
        return replace(scores, masks=(*scores.masks, Mask(condition, axes, side == 1, float(fill))))
    return None


def _unscaled(below: Scores) -> None:
    """Refuse a scale or softcap after a mask, since Attention masks last."""
    if below.scale != 1.0 or below.softcap:
        raise NearMiss("its scores are scaled after the mask")


def _scaled(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    for side in (0, 1) if node.op_type == "Mul" else (0,):
        number, value = graph.scalar(operand(node, 1 - side)), operand(node, side)
        if not number or graph.rank(value) != graph.rank(node.outputs[0]):
            continue
        capped = value.producer() if value is not None else None
        if capped is not None and capped.op_type == "Tanh" and node.op_type == "Mul" and not capped.domain:
            return _capped(capped, number, node, below, graph)
        factor = number if node.op_type == "Mul" else 1 / number
        return _above(value, node, replace(below, scale=below.scale * factor), graph)
    if node.op_type == "Mul" and any(_above(value, node, below, graph) for value in node.inputs):
        raise NearMiss("its scale is not a constant")
    return None


def _capped(tanh: ir.Node, cap: float, node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    """Match c * tanh(x / c)."""
    inner = replace(below, nodes=(*below.nodes, tanh), softcap=float(cap))
    scores = _above(operand(tanh, 0), tanh, replace(inner, scale=1.0), graph)
    if scores is None:
        return None
    if below.scale != 1.0 or below.softcap or cap <= 0:
        raise NearMiss("its softcap differs from that of Attention")
    if graph.sole_consumer(tanh.outputs[0]) is not node:
        raise NearMiss("its scores are read elsewhere")
    return replace(scores, scale=scores.scale * cap)


def _viewed(node: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    shape = graph.shape(operand(node, 0))
    if shape is None or 0 in shape:
        return None
    axes = regroup(flat(below.axes), shape)
    return None if axes is None else _above(operand(node, 0), node, replace(below, axes=axes), graph)


def _mask_axes(mask: ir.Value, side: int, node: ir.Node, below: Scores, graph: Facts) -> Axes:
    """Return the parts of the scores that a mask varies over, axis by axis; an axis it does not vary over is empty."""
    if not graph.same_shape(operand(node, side), node.outputs[0]):
        raise NearMiss("its mask could enlarge the scores")
    shape = graph.shape(mask)
    result = graph.shape(node.outputs[0]) or ()
    if shape is None or len(shape) > len(result):
        raise NearMiss("the shape of its mask is unknown")
    axes: Axes = []
    for axis, dim in zip(range(-len(shape), 0), shape, strict=True):
        if dim not in (1, result[axis]):
            raise NearMiss("its mask could enlarge the scores")
        axes.append([] if dim == 1 else below.axes[axis])
    return axes


_READERS = {
    "MatMul": _product, "Cast": _cast, "Add": _sum, "Where": _where, "Mul": _scaled, "Div": _scaled,
    **dict.fromkeys(VIEWS, _viewed),
}  # fmt: skip


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
