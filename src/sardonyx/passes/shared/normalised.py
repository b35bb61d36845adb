"""c / sqrt(mean(c * c) + eps), however spelled: what layer and root-mean-square normalisation have in common.

Found from the square root. Everything is read in any operand order, with the mean's axes as attribute or input, and
with the casts around that half-precision exports have; a scale may be applied before, in between, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Refused
from sardonyx.passes.shared.arithmetic import (
    last_axes,
    made_by,
    number_beside,
    partner,
    power,
    reader,
    squared,
    uncast,
)
from sardonyx.passes.shared.matching import ints

ROOTS = ("Sqrt", "Pow")


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """A mean over the last axes that keeps them."""

    source: ir.Value
    axes: int
    node: ir.Node


@dataclass(frozen=True, slots=True, eq=False)
class Centred:
    """x - mean(x)."""

    source: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Normalised:
    """A value divided by the root of its mean square."""

    source: ir.Value  # what is normalised, as it is squared
    axes: int  # over how many of the last axes
    epsilon: float
    result: ir.Value
    scale: ir.Value | None  # what the result is multiplied with already
    nodes: tuple[ir.Node, ...]

    @property
    def end(self) -> ir.Node:
        """The node that makes the result."""
        return self.nodes[-1]


def mean(value: ir.Value | None, beside: ir.Node, graph: Facts) -> Mean | Refused | None:
    """What a value is the mean of; refused where it is over other axes than the last ones, or drops them."""
    node = made_by(value, beside, "ReduceMean")
    if node is None or (source := node.inputs[0]) is None:
        return None
    axes = ints(node, "axes", 1, graph)
    if axes is None and (len(node.inputs) > 1 or node.attributes.get_int("noop_with_empty_axes", 0)):
        return Refused("the axes of the mean are computed", (node,))
    count = last_axes(axes, graph.rank(source))
    if count is None:
        return Refused("the mean is not over the last axes", (node,))
    if not node.attributes.get_int("keepdims", 1):
        return Refused("the mean drops its axes", (node,))
    return Mean(source, count, node)


def centred(value: ir.Value, beside: ir.Node, graph: Facts) -> Centred | Refused | None:
    """What a value is the distance from the mean of."""
    node = made_by(value, beside, "Sub")
    if node is None or node.inputs[0] is None:
        return None
    found = mean(node.inputs[1], beside, graph)
    if not isinstance(found, Mean):
        return found
    if uncast(found.source, beside)[0] is not uncast(node.inputs[0], beside)[0]:
        return None
    return Centred(node.inputs[0], found.axes, (found.node, node))


def normalised(root: ir.Node, graph: Facts, *, about_mean: bool) -> Normalised | Refused | None:
    """The normalisation that has its square root at this node, of a value about its mean or of one as it is."""
    opened = power(root, graph)
    if opened is None or opened[1] not in (0.5, -0.5):
        return None
    radicand, exponent, _ = opened
    added, epsilon = made_by(radicand, root, "Add"), 0.0
    if added is not None:
        beside = number_beside(added, graph)
        if beside is None or beside[1] < 0:
            return None
        radicand, epsilon = beside
    found = mean(radicand, root, graph)
    square = None if found is None else _square_under(radicand, root, graph)
    if found is None or square is None or _is_about_mean(square[0], root) != about_mean:
        return None
    source, squaring = square
    inner = (squaring, *((added,) if added is not None else ()), root)
    if isinstance(found, Refused):
        return Refused(found.reason, (*found.nodes, *inner))
    below = Normalised(source, found.axes, epsilon, root.outputs[0], None, (squaring, found.node, *inner[1:]))
    return _applied(below, graph, inverted=exponent < 0)


def _is_about_mean(value: ir.Value, beside: ir.Node) -> bool:
    """Whether a mean was taken off the value, be it the right one."""
    node = made_by(uncast(value, beside)[0], beside, "Sub")
    return node is not None and made_by(node.inputs[1], beside, "ReduceMean") is not None


def _square_under(value: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Value, ir.Node] | None:
    node = made_by(value, beside, "ReduceMean")
    return None if node is None else squared(node.inputs[0], beside, graph)


def _applied(below: Normalised, graph: Facts, *, inverted: bool) -> Normalised | Refused:
    """Go from the root of the mean square to where the value is divided by it."""
    if not inverted:
        user = reader(below.result, graph, "Reciprocal", "Div")
        turned = None if user is None else power(user, graph)
        if turned is not None and turned[1] == -1 and turned[0] is below.result:
            below, inverted = after(below, turned[2]), True
    user = graph.sole_user(below.result)
    if user is None:
        return Refused("the deviation is read elsewhere", below.nodes)
    if user.op_type in ("Add", "Max", "Clip"):
        return Refused("epsilon is outside the square root", (*below.nodes, user))
    if inverted:
        return _multiplied(below, graph)
    if reader(below.result, graph, "Div") is None or user.inputs[1] is not below.result:
        return Refused("the deviation divides nothing", (*below.nodes, user))
    return _with_numerator(below, user, user.inputs[0], graph)


def _multiplied(below: Normalised, graph: Facts) -> Normalised | Refused:
    """From 1 / root on: multiplied with the value, or with the scale first."""
    user = reader(below.result, graph, "Mul")
    if user is None:
        return Refused("the reciprocal deviation is read elsewhere or not multiplied with", below.nodes)
    other = partner(user, below.result)
    done = _with_numerator(below, user, other, graph)
    if isinstance(done, Normalised) or below.scale is not None or other is None:
        return done
    return _multiplied(replace(after(below, user), scale=other), graph)


def _with_numerator(below: Normalised, user: ir.Node, value: ir.Value | None, graph: Facts) -> Normalised | Refused:
    """The division, where it is of the value that was squared, or of that value scaled."""
    alike = None if value is None else same(value, below.source, user, graph)
    if alike is not None:
        return after(below, *alike, user)
    scaling = made_by(value, user, "Mul")
    for side in (0, 1) if scaling is not None and below.scale is None else ():
        assert scaling is not None
        first, scale = scaling.inputs[side], scaling.inputs[1 - side]
        alike = None if first is None else same(first, below.source, user, graph)
        if alike is not None and scale is not None:
            return replace(after(below, *alike, scaling, user), scale=scale)
    return Refused("another value is divided than the one that was squared", (*below.nodes, user))


def after(below: Normalised, *nodes: ir.Node) -> Normalised:
    """The normalisation up to the last of these nodes."""
    return replace(below, result=nodes[-1].outputs[0], nodes=(*below.nodes, *nodes))


def same(value: ir.Value, other: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Nodes that make `value` anew where it is `other` in another place: cast, or centred a second time."""
    if value is other:
        return ()
    (bare, casts), (wanted, others) = uncast(value, beside), uncast(other, beside)
    if max(len(casts), len(others)) > 1:
        return None  # a cast to a narrower type in between makes it another value
    if bare is wanted:
        return casts
    mine, yours = centred(bare, beside, graph), centred(wanted, beside, graph)
    if not (isinstance(mine, Centred) and isinstance(yours, Centred)) or mine.axes != yours.axes:
        return None
    return (*mine.nodes, *casts) if mine.source is yours.source else None
