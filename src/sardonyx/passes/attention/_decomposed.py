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
from sardonyx.ir.rules import NoMatch, Refused
from sardonyx.passes._layout import (
    Axes,
    Axis,
    Conversion,
    Source,
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
from sardonyx.passes._matching import optional, producer_of, require, required, value_and_factor

MAX_VISITED_NODES = 256  # visited above one Softmax, since sums of shared values can have exponentially many paths
SWALLOWING_MASK = 1e30  # adding a score to a number of this magnitude leaves the number unchanged


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


def read_scores(softmax: ir.Node, graph: Facts) -> Scores:
    """Decompose what a Softmax over the last axis reads; it is no match if that is no product of queries and keys."""
    shape = required(graph.shape(softmax.inputs[0]))
    require(0 not in shape)
    axes = new_axes(shape)
    return required(_above(softmax.inputs[0], softmax, Scores((), axes, axes, iter(range(MAX_VISITED_NODES))), graph))


@optional
def _above(value: ir.Value | None, user: ir.Node, below: Scores, graph: Facts) -> Scores:
    """Read the producer of a value; `below` is what has been read between it and the Softmax."""
    producer = required(producer_of(value, user, _READERS))
    required(next(below.budget, None))
    scores = _READERS[producer.op_type](producer, replace(below, nodes=(*below.nodes, producer)), graph)
    require(graph.sole_consumer(producer.outputs[0]) is user, "its scores are read elsewhere")
    return scores


def _product(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    """Accept the product itself. A product with a constant is a linear layer."""
    require(all(graph.tensor(value) is None for value in node.inputs[:2]))
    require(same_axes(below.axes, below.whole), "its scores are reshaped before the Softmax")
    return below


def _cast(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    scores = required(_above(node.inputs[0], node, below, graph))
    to, source = node.attributes.get_int("to", 0), graph.dtype(node.inputs[0])
    is_last = to == ir.DataType.FLOAT and source == ir.DataType.FLOAT16 and len(below.nodes) == 1
    require(is_last, "its scores are cast to another type before the Softmax")
    return replace(scores, precision=ir.DataType.FLOAT)


def _sum(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    near_miss: Refused | None = None
    for side in (0, 1):
        mask = required(node.inputs[1 - side])
        try:
            scores = _above(node.inputs[side], node, below, graph)
            if scores is not None:
                _check_order(below)
                return replace(scores, masks=(*scores.masks, Mask(mask, _mask_axes(mask, side, node, below, graph))))
        except Refused as refused:  # the other operand may be the scores and this one the mask
            near_miss = near_miss or refused
    raise near_miss or NoMatch


def _where(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    condition = required(node.inputs[0])
    for side in (1, 2):
        fill = graph.scalar(node.inputs[3 - side])
        scores = None if fill is None else _above(node.inputs[side], node, below, graph)
        if fill is None or scores is None:
            continue
        _check_order(below)
        is_infinite = fill == float("-inf") or graph.dtype(node.outputs[0]) == ir.DataType.FLOAT
        is_hidden = fill <= -SWALLOWING_MASK and is_infinite
        require(is_hidden, "masked scores keep some weight, so the result of a fully masked row would change")
        axes = _mask_axes(condition, side, node, below, graph)
        return replace(scores, masks=(*scores.masks, Mask(condition, axes, side == 1, float(fill))))
    raise NoMatch


def _check_order(below: Scores) -> None:
    """Refuse a scale or softcap after a mask, since Attention masks last."""
    require(below.scale == 1.0 and not below.softcap, "its scores are scaled after the mask")


def _scaled(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    value, factor = value_and_factor(node, graph) or (None, 0.0)
    if value is None or not factor:
        is_scaled = node.op_type == "Mul" and any(_above(value, node, below, graph) for value in node.inputs)
        raise Refused("its scale is not a constant") if is_scaled else NoMatch
    tanh = producer_of(value, node, ("Tanh",) if node.op_type == "Mul" else ())
    if tanh is not None:
        return _capped(tanh, factor, node, below, graph)
    return required(_above(value, node, replace(below, scale=below.scale * factor), graph))


def _capped(tanh: ir.Node, cap: float, node: ir.Node, below: Scores, graph: Facts) -> Scores:
    """Match c * tanh(x / c)."""
    inner = replace(below, nodes=(*below.nodes, tanh), softcap=cap)
    scores = required(_above(tanh.inputs[0], tanh, replace(inner, scale=1.0), graph))
    is_same = below.scale == 1.0 and not below.softcap and cap > 0
    require(is_same, "its softcap differs from that of Attention")
    require(graph.sole_consumer(tanh.outputs[0]) is node, "its scores are read elsewhere")
    return replace(scores, scale=scores.scale * cap)


def _viewed(node: ir.Node, below: Scores, graph: Facts) -> Scores:
    shape = required(graph.shape(node.inputs[0]))
    require(0 not in shape)
    axes = required(regroup(flat(below.axes), shape))
    return required(_above(node.inputs[0], node, replace(below, axes=axes), graph))


def _mask_axes(mask: ir.Value, side: int, node: ir.Node, below: Scores, graph: Facts) -> Axes:
    """Return the parts of the scores that a mask varies over, axis by axis; an axis it does not vary over is empty."""
    require(graph.same_shape(node.inputs[side], node.outputs[0]), "its mask could enlarge the scores")
    shape, result = graph.shape(mask), graph.shape(node.outputs[0]) or ()
    shape = required(shape if len(shape or ()) <= len(result) else None, "the shape of its mask is unknown")
    axes: Axes = []
    for axis, dim in zip(range(-len(shape), 0), shape, strict=True):
        require(dim in (1, result[axis]), "its mask could enlarge the scores")
        axes.append([] if dim == 1 else below.axes[axis])
    return axes


_READERS = {
    "MatMul": _product, "Cast": _cast, "Add": _sum, "Where": _where, "Mul": _scaled, "Div": _scaled,
    **dict.fromkeys(VIEWS, _viewed),
}  # fmt: skip


NOT_CONSTANT = "its operands need a Reshape whose target is not constant"


class Layout(Struct, frozen=True, eq=False):
    """The operands in the form that Attention takes, and the conversion of its result to the original layout."""

    operands: tuple[Source, Source, Source]
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
    """Return the layout of attention between two products; the keys are transposed."""
    # The scale of Attention is applied to the product. In half precision that could overflow where queries that are
    # scaled before the product do not.
    scales = graph.dtype(queries) == ir.DataType.FLOAT
    operands = ((queries, first, scales), (keys, first, scales), (values, last, False))
    trails = [
        required(
            None if value is None else trace(value, graph, node=node, scales=through),
            "the shape of an operand is unknown",
        )
        for value, node, through in operands
    ]
    ranks = {len(trail.axes) for trail in trails}
    require(ranks in ({3}, {4}), "its operands differ in rank")
    roles = [_roles(trail, is_keys=trail is trails[1]) for trail in trails]
    if ranks == {3}:
        split = [_with_heads(role, trail) for role, trail in zip(roles, trails, strict=True)]
        counts = {size(role.heads or []) for role in split}
        if len(counts) == 1 and counts != {1}:
            try:
                return _layout_of(split, trails)
            except Refused:  # treat everything as a single head
                pass
    return _layout_of(roles, trails)


def _roles(trail: Trail, *, is_keys: bool) -> _Roles:
    batch, *heads, rows, columns = trail.axes
    length, width = (columns, rows) if is_keys else (rows, columns)
    return _Roles(batch, heads[0] if heads else None, length, width)


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


def _layout_of(roles: Sequence[_Roles], trails: Sequence[Trail]) -> Layout:
    queries, keys, values = roles
    require(len({size(role.batch) for role in roles}) == 1, "its operands may have different batch sizes")
    require(size(keys.length) == size(values.length), "keys and values may have different lengths")
    keys, values = (_without_repetition(role, queries) for role in (keys, values))
    is_equal = size(keys.heads or []) == size(values.heads or [])
    require(is_equal, "keys and values are repeated for different groups of heads")
    first, second, third = map(_operand, (queries, keys, values), trails)
    result = [*queries.axes[:-1], values.width]
    front = queries.axes[:-2] if len(trails[0].axes) == len(queries.axes) else [flat(queries.axes[:-2])]
    back = required(conversion(result, [*front, queries.length, values.width]), NOT_CONSTANT)
    head_counts = {} if queries.heads is not None else {"q_num_heads": 1, "kv_num_heads": 1}
    batch, width = size(queries.batch), size(queries.width)
    return Layout((first, second, third), back, sizes(result), queries.heads, batch, width, head_counts)


def _without_repetition(roles: _Roles, queries: _Roles) -> _Roles:
    """Return keys or values without the repetition of their heads."""
    if roles.heads is None:
        return roles
    heads = refined(roles.heads)
    is_multiple = size(heads) in (1, size(queries.heads or []))
    require(is_multiple, "queries and keys may have different numbers of heads")
    while heads and heads[-1].repeats:
        heads.pop()
    return _Roles(roles.batch, heads, roles.length, roles.width)


def _operand(roles: _Roles, trail: Trail) -> Source:
    """Return the stage of the trace from which the conversion saves the most nodes."""
    sources = trail.sources(lambda _: roles.axes)
    best = max(sources, key=lambda source: trail.dying(len(source.nodes)) - len(source.steps), default=None)
    return required(best, NOT_CONSTANT)
