"""c / sqrt(mean(c * c) + eps), however spelled: what layer and root-mean-square normalisation have in common.

Found from the square root. Everything is read in any operand order, with the casts that half-precision exports have: to
a wider type, which change no number, and of the root back to half. A scale may be applied before, in between, or not at
all, and what is divided may be multiplied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Refused
from sardonyx.passes.norms._arithmetic import made_by, number_beside, partner, power, reader, squared, uncast
from sardonyx.passes.norms._means import Centred, Mean, centred, mean

ROOTS = ("Sqrt", "Pow")

# Types in which exports apply a root that they computed in a wider one, and the epsilon from which on they hold it: the
# root of 2**-28 is the least number that half precision has with all its digits, and its reciprocal is in range.
_NARROW: Mapping[ir.DataType, float] = MappingProxyType({ir.DataType.FLOAT16: 2.0**-28, ir.DataType.BFLOAT16: 0.0})
_ANOTHER = "another value is divided than the one that was squared"
_ELSEWHERE = "the deviation is read elsewhere"
_NOTHING = "nothing is divided by the deviation"


@dataclass(frozen=True, slots=True, eq=False)
class Normalised:
    """A value divided by the root of its mean square."""

    source: ir.Value  # what is normalised, as it is squared
    axes: int  # over how many of the last axes
    epsilon: float
    result: ir.Value
    nodes: tuple[ir.Node, ...]
    scale: ir.Value | None = None  # what the result is multiplied with already
    bias: ir.Value | None = None  # what is added to it already

    @property
    def end(self) -> ir.Node:
        """The node that makes the result."""
        return self.nodes[-1]


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
    square = None if found is None else squared(found.source, root, graph)
    if found is None or square is None or _is_about_mean(square[0], root, graph) != about_mean:
        return None
    source, squaring = square
    nodes = (squaring, *found.nodes, *((added,) if added is not None else ()), root)
    if found.fault is not None:
        return Refused(found.fault, nodes)
    below = Normalised(source, found.axes, epsilon, root.outputs[0], nodes)
    return _applied(below, graph, inverted=exponent < 0)


def _is_about_mean(value: ir.Value, beside: ir.Node, graph: Facts) -> bool:
    """Whether a mean was taken off the value, be it the right one."""
    node = made_by(uncast(value, beside, graph)[0], beside, "Sub")
    return node is not None and isinstance(mean(node.inputs[1], beside, graph), Mean)


def _applied(below: Normalised, graph: Facts, *, inverted: bool) -> Normalised | Refused:
    """Go from the root of the mean square to where the value is divided by it."""
    if not inverted:
        user = reader(below.result, graph, "Reciprocal", "Div")
        turned = None if user is None else power(user, graph)
        if turned is not None and turned[1] == -1 and turned[0] is below.result:
            below, inverted = after(below, turned[2]), True
    cast = reader(below.result, graph, "Cast")
    if cast is not None:  # back to half precision, before it is applied
        narrow = ir.DataType(cast.attributes.get_int("to", 0))
        if narrow not in _NARROW or below.epsilon < _NARROW[narrow]:
            return Refused("the deviation is cast to a type that does not hold it", (*below.nodes, cast))
        below = after(below, cast)
    if inverted:
        return _multiplied(below, graph)
    user = graph.sole_user(below.result)
    if user is None:
        return Refused(_ELSEWHERE, below.nodes)
    if user.op_type in ("Add", "Max", "Clip"):
        return Refused("epsilon is outside the square root", (*below.nodes, user))
    if reader(below.result, graph, "Div") is None or user.inputs[1] is not below.result:
        return Refused(_NOTHING, (*below.nodes, user))
    return _with_numerator(below, user, user.inputs[0], graph) or Refused(_ANOTHER, (*below.nodes, user))


def _multiplied(below: Normalised, graph: Facts) -> Normalised | Refused:
    """From 1 / root on: multiplied with the value, or with the scale first, or the difference multiplied out."""
    user = reader(below.result, graph, "Mul")
    if user is None:
        reason = _ELSEWHERE if graph.sole_user(below.result) is None else _NOTHING
        return _multiplied_out(below, graph) or Refused(reason, below.nodes)
    other = partner(user, below.result)
    done = _with_numerator(below, user, other, graph)
    if done is not None:
        return done
    if below.scale is not None or other is None or other is below.result:
        return Refused(_ANOTHER, (*below.nodes, user))
    return _multiplied(replace(after(below, user), scale=other), graph)


def _with_numerator(below: Normalised, user: ir.Node, value: ir.Value | None, graph: Facts) -> Normalised | None:
    """The division, where it is of the value that was squared, or of that value scaled."""
    alike = None if value is None else same(value, below.source, user, graph)
    if alike is not None:
        return after(below, *alike, user)
    scaled = made_by(value, user, "Mul") if below.scale is None else None
    if scaled is None:
        return None
    for first, scale in ((scaled.inputs[0], scaled.inputs[1]), (scaled.inputs[1], scaled.inputs[0])):
        alike = None if first is None else same(first, below.source, user, graph)
        if alike is not None and scale is not None:
            return replace(after(below, *alike, scaled, user), scale=scale)
    return None


def _multiplied_out(below: Normalised, graph: Facts) -> Normalised | None:
    """x * r + (beta - mean * r), or x * r - mean * r, where r is the reciprocal root, scaled or not."""
    middle, factor = centred(below.source, below.end, graph), below.result
    users = [use.node for use in factor.uses()]
    if not isinstance(middle, Centred) or len(users) != 2 or any(user.op_type != "Mul" for user in users):
        return None
    for first, second in (users, users[::-1]):
        if partner(first, factor) is not middle.source or partner(second, factor) is not middle.mean:
            continue
        for last, bias, between in _differences(first.outputs[0], second.outputs[0], graph):
            return replace(after(below, *users, *between, last), bias=bias)
    return None


def _differences(
    first: ir.Value, second: ir.Value, graph: Facts
) -> Iterator[tuple[ir.Node, ir.Value | None, tuple[ir.Node, ...]]]:
    """Where `second` is taken off `first`, directly or off a bias before; the last node, the bias, those in between."""
    taken = reader(second, graph, "Sub")
    if taken is None or taken.inputs[1] is not second or taken.inputs[0] is second:
        return
    if taken.inputs[0] is first:
        yield taken, None, ()
        return
    added = reader(taken.outputs[0], graph, "Add")
    if added is not None and partner(added, taken.outputs[0]) is first:
        yield added, taken.inputs[0], (taken,)


def after(below: Normalised, *nodes: ir.Node) -> Normalised:
    """The normalisation up to the last of these nodes."""
    return replace(below, result=nodes[-1].outputs[0], nodes=(*below.nodes, *nodes))


def same(value: ir.Value, other: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Nodes that make `value` anew where it is `other` in another place: cast, or centred a second time."""
    if value is other:
        return ()
    (bare, casts), (wanted, _) = uncast(value, beside, graph), uncast(other, beside, graph)
    if bare is wanted:
        return casts
    if graph.dtype(bare) != graph.dtype(wanted):
        return None  # centred in one type and in another gives other numbers
    mine, yours = centred(bare, beside, graph), centred(wanted, beside, graph)
    if not (isinstance(mine, Centred) and isinstance(yours, Centred)) or mine.axes != yours.axes:
        return None
    return (*mine.nodes, *casts) if mine.source is yours.source else None
