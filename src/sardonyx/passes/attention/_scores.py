"""Reads what stands between the product of queries and keys and its Softmax: scale, softcap, masks, in any spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.passes._matching import operand
from sardonyx.passes.attention._heads import Axes, flat, new_axes, regroup, same_axes

FARTHEST = 256  # nodes that are looked at above one Softmax: sums of shared values have as many ways up as they like
SWALLOWS = 1e30  # adding a score to a number of this size gives that number


class NearMiss(Exception):
    """This is attention, but not one that can be fused; says why."""


@dataclass(frozen=True)
class Mask:
    """Something added to the scores, or a condition under which they are kept."""

    value: ir.Value
    axes: Axes  # in parts of the scores
    keeps: bool | None = None  # of a condition: which of its values keeps a score
    fill: float = 0.0  # of a condition: what stands in for the others


@dataclass(frozen=True)
class Scores:
    """The scores that a Softmax reads, taken apart."""

    nodes: tuple[ir.Node, ...]  # from the Softmax up to the product
    axes: Axes  # of the value at hand, in parts of the Softmax's input
    whole: Axes  # of the Softmax's input
    budget: Iterator[int]  # one step for each node that is still to be looked at
    masks: tuple[Mask, ...] = ()
    scale: float = 1.0
    softcap: float = 0.0
    precision: ir.DataType | None = None

    @property
    def product(self) -> ir.Node:
        """The product of queries and keys."""
        return self.nodes[-1]


def read_scores(softmax: ir.Node, graph: Facts) -> Scores | None:
    """Take apart what a Softmax over the last axis reads; None where it is no product of queries and keys.

    Raises:
        NearMiss: where it is one, but not as Attention computes it.
    """
    shape = graph.shape(softmax.inputs[0])
    if shape is None or 0 in shape:
        return None
    axes = new_axes(shape)
    return _above(softmax.inputs[0], softmax, Scores((), axes, axes, iter(range(FARTHEST))), graph)


def _above(value: ir.Value | None, user: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    made = None if value is None else value.producer()
    if value is None or made is None or made.domain or made.graph is not user.graph:
        return None
    if next(below.budget, None) is None or made.op_type not in _READERS:
        return None
    if any(attribute.is_ref() for attribute in made.attributes.values()):
        return None
    found = _READERS[made.op_type](made, replace(below, nodes=(*below.nodes, made)), graph)
    if found is not None and graph.sole_user(value) is not user:
        raise NearMiss("its scores are read elsewhere")
    return found


def _product(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    """The product itself. One with a constant is a linear layer, whatever follows."""
    if any(graph.tensor(value) is not None for value in made.inputs[:2]):
        return None
    if not same_axes(below.axes, below.whole):
        raise NearMiss("its scores are seen in another shape by the Softmax")
    return below


def _cast(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    found = _above(operand(made, 0), made, below, graph)
    if found is None:
        return None
    to, source = made.attributes.get_int("to", 0), graph.dtype(operand(made, 0))
    if to != ir.DataType.FLOAT or source != ir.DataType.FLOAT16 or len(below.nodes) > 1:
        raise NearMiss("its scores change their type on the way")
    return replace(found, precision=ir.DataType.FLOAT)


def _sum(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    refused: NearMiss | None = None
    for side in (0, 1):
        mask = operand(made, 1 - side)
        if mask is None:
            continue
        try:
            found = _above(operand(made, side), made, below, graph)
            if found is not None:
                _unscaled(below)
                return replace(found, masks=(*found.masks, Mask(mask, _spread(mask, side, made, below, graph))))
        except NearMiss as reason:  # the other operand may be the scores, and this one what is added to them
            refused = refused or reason
    if refused is not None:
        raise refused
    return None


def _where(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    condition = operand(made, 0)
    for side in (1, 2):
        fill = graph.scalar(operand(made, 3 - side))
        if fill is None or condition is None:
            continue
        found = _above(operand(made, side), made, below, graph)
        if found is None:
            continue
        _unscaled(below)
        if fill > -SWALLOWS or (graph.dtype(made.outputs[0]) != ir.DataType.FLOAT and fill != float("-inf")):
            raise NearMiss("masked scores keep some weight: a fully masked row would come out otherwise")
        axes = _spread(condition, side, made, below, graph)
        return replace(found, masks=(*found.masks, Mask(condition, axes, side == 1, float(fill))))
    return None


def _unscaled(below: Scores) -> None:
    """Masks come last in Attention."""
    if below.scale != 1.0 or below.softcap:
        raise NearMiss("its scores are scaled after the mask")


def _scaled(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    for side in (0, 1) if made.op_type == "Mul" else (0,):
        by, value = graph.scalar(operand(made, 1 - side)), operand(made, side)
        if not by or graph.rank(value) != graph.rank(made.outputs[0]):
            continue
        capped = value.producer() if value is not None else None
        if capped is not None and capped.op_type == "Tanh" and made.op_type == "Mul" and not capped.domain:
            return _capped(capped, by, made, below, graph)
        factor = by if made.op_type == "Mul" else 1 / by
        return _above(value, made, replace(below, scale=below.scale * factor), graph)
    if made.op_type == "Mul" and any(_above(value, made, below, graph) for value in made.inputs):
        raise NearMiss("its scale is not a constant")
    return None


def _capped(tanh: ir.Node, by: float, made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    """c * tanh(x / c)."""
    inner = replace(below, nodes=(*below.nodes, tanh), softcap=float(by))
    found = _above(operand(tanh, 0), tanh, replace(inner, scale=1.0), graph)
    if found is None:
        return None
    if below.scale != 1.0 or below.softcap or by <= 0:
        raise NearMiss("its scores are capped in another way than Attention does it")
    if graph.sole_user(tanh.outputs[0]) is not made:
        raise NearMiss("its scores are read elsewhere")
    return replace(found, scale=found.scale * by)


def _viewed(made: ir.Node, below: Scores, graph: Facts) -> Scores | None:
    shape = graph.shape(operand(made, 0))
    if shape is None or 0 in shape:
        return None
    axes = regroup(flat(below.axes), shape)
    return None if axes is None else _above(operand(made, 0), made, replace(below, axes=axes), graph)


def _spread(mask: ir.Value, side: int, made: ir.Node, below: Scores, graph: Facts) -> Axes:
    """Over which parts of the scores (that operand of the node) a mask varies; axes it does not have are empty."""
    if not graph.same_shape(operand(made, side), made.outputs[0]):
        raise NearMiss("its mask could enlarge the scores")
    shape = graph.shape(mask)
    result = graph.shape(made.outputs[0]) or ()
    if shape is None or len(shape) > len(result):
        raise NearMiss("the shape of its mask is not known")
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
