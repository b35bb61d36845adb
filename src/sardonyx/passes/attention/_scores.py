"""Read what is applied between the product of queries and keys and its Softmax: scale, softcap, masks.

The scores are read from the Softmax upwards. With S = Q K^T the result is Softmax(mask_n(… mask_1(cap(scale * S)))),
where cap(x) = c * tanh(x / c); every mask is a sum or a Where. Scale, cap and masks have to be in this order, which is
the order in which Attention applies them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.passes._layout import Axes, flat, new_axes, regroup, same_axes
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
