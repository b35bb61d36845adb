"""Recognise c / sqrt(mean(c * c) + eps), which layer and root-mean-square normalisation have in common.

The search starts at the square root. Operands may be in any order, with the casts of half-precision exports: to a wider
type, which preserves values, and of the root back to half. A scale may be applied before, in between, or not at all,
and the difference x - mean(x) may be multiplied out: x * r - mean(x) * r with r = 1 / sqrt(…).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.expressions import Expression
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, Refused, Replacement
from sardonyx.ir.tensors import ExpressionTensor, reshaped
from sardonyx.passes._matching import consumer_of, ints, is_specified, other_operand, producer_of
from sardonyx.passes.norms._arithmetic import (
    FUSED_FLOATS,
    broadcast_constant,
    escaping_value,
    last_axes,
    near,
    power,
    squared,
    to_single,
    uncast,
    value_and_factor,
    value_and_scalar,
)

_REDUCTIONS = ("ReduceMean", "ReduceSum")
ROOTS = ("Sqrt", "Pow")
# Types to which exports cast a root computed in a wider type, and the least epsilon for which they represent it: the
# root of 2**-28 is the least normal number of half precision, and its reciprocal is in range.
_NARROW: Mapping[ir.DataType, float] = MappingProxyType({ir.DataType.FLOAT16: 2.0**-28, ir.DataType.BFLOAT16: 0.0})
_NUMERATOR_DIFFERS = "the divided value is not the one that is squared"
_DEVIATION_READ_ELSEWHERE = "the deviation is read elsewhere"
_NOT_A_DIVISION = "nothing is divided by the deviation"


class Mean(Struct, frozen=True, eq=False):
    """A mean over the last axes that keeps them; `fault` is why it is not exactly that, if so."""

    source: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]
    fault: str | None = None


class Centred(Struct, frozen=True, eq=False):
    """A value minus its mean."""

    source: ir.Value
    mean: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]


def sizes(value: ir.Value, axes: int, graph: Facts) -> tuple[int, ...] | None:
    """Return the last sizes of a value if they are static, otherwise None."""
    shape = graph.shape(value)
    last = None if shape is None else shape[len(shape) - axes :]
    numbers = [dim for dim in last or () if isinstance(dim, int)]
    return tuple(numbers) if len(numbers) == axes else None


def mean(value: ir.Value | None, beside: ir.Node, graph: Facts) -> Mean | None:
    """Return what a value is the mean of: a ReduceMean, or a ReduceSum divided by the size, maybe reshaped."""
    result, factor, nodes = value, 1.0, list[ir.Node]()
    while (node := producer_of(value, beside, ("Reshape", "Unsqueeze", "Mul", "Div", *_REDUCTIONS))) is not None:
        nodes.append(node)
        scaled = value_and_factor(node, graph)
        if node.op_type in _REDUCTIONS:
            break
        if node.op_type in ("Mul", "Div") and scaled is None:
            return None
        value, factor = (node.inputs[0], factor) if scaled is None else (scaled[0], factor * scaled[1])
    if node is None or result is None or (source := node.inputs[0]) is None:
        return None
    axes = ints(node, "axes", 1, graph)
    count = last_axes(axes, graph.rank(source))
    fault = None
    if axes is None and (is_specified(node, "axes", 1) or node.attributes.get_int("noop_with_empty_axes", 0)):
        fault = "the axes of the mean are computed"
    elif count is None:
        fault = "the mean is not over the last axes"
    elif not _keeps_axes(node, result, nodes, count, graph):
        fault = "the mean drops its axes"
    elif not _is_mean(node, factor, count, graph):
        fault = (
            "the sum is not divided by the number of its summands"
            if node.op_type == "ReduceSum"
            else "the mean is scaled"
        )
    return Mean(source, count or 0, tuple(reversed(nodes)), fault)


def _keeps_axes(node: ir.Node, result: ir.Value, nodes: list[ir.Node], count: int, graph: Facts) -> bool:
    """Return whether the reduced axes are kept with size one, after the views that follow."""
    if not any(view.op_type in ("Reshape", "Unsqueeze") for view in nodes):
        return bool(node.attributes.get_int("keepdims", 1))
    source_shape, shape = graph.shape(node.inputs[0]), graph.shape(result)
    if source_shape is None or shape is None or None in shape:
        return False
    return shape == (*source_shape[: len(source_shape) - count], *(1,) * count)


def _is_mean(node: ir.Node, factor: float, count: int, graph: Facts) -> bool:
    dtype = graph.dtype(node.inputs[0]) or ir.DataType.FLOAT
    if node.op_type == "ReduceMean":
        return near(factor, 1.0, dtype)
    assert node.inputs[0] is not None
    extent = sizes(node.inputs[0], count, graph)
    return extent is not None and near(factor * math.prod(extent), 1.0, dtype)


def centred(value: ir.Value, beside: ir.Node, graph: Facts) -> Centred | Refused | None:
    """Match source - mean(source)."""
    node = producer_of(value, beside, ("Sub",))
    if node is None or (source := node.inputs[0]) is None or (mean_value := node.inputs[1]) is None:
        return None
    mean_of = mean(mean_value, beside, graph)
    if mean_of is None or uncast(mean_of.source, beside, graph)[0] is not uncast(source, beside, graph)[0]:
        return None
    if mean_of.fault is not None:
        return Refused(mean_of.fault, (*mean_of.nodes, node))
    return Centred(source, mean_value, mean_of.axes, (*mean_of.nodes, node))


class Normalised(Struct, frozen=True, eq=False):
    """A value divided by the root of its mean square."""

    source: ir.Value  # the value that is squared
    axes: int  # the number of normalised last axes
    epsilon: float
    result: ir.Value
    nodes: tuple[ir.Node, ...]
    scale: ir.Value | None = None  # what the result is already multiplied by
    bias: ir.Value | None = None  # what is already added to it

    @property
    def end(self) -> ir.Node:
        """Return the node that produces the result."""
        return self.nodes[-1]


def normalised(root: ir.Node, graph: Facts, *, about_mean: bool) -> Normalised | Refused | None:
    """Return the normalisation with its square root at this node.

    With `about_mean` the value is centred about its mean (layer normalisation), otherwise it is not.
    """
    root_power = power(root, graph)
    if root_power is None or root_power[1] not in (0.5, -0.5):
        return None
    radicand, exponent, _ = root_power
    added, epsilon = producer_of(radicand, root, ("Add",)), 0.0
    if added is not None:
        beside = value_and_scalar(added, graph)
        if beside is None or beside[1] < 0:
            return None
        radicand, epsilon = beside
    mean_square = mean(radicand, root, graph)
    square = None if mean_square is None else squared(mean_square.source, root, graph)
    if mean_square is None or square is None or _is_about_mean(square[0], root, graph) != about_mean:
        return None
    source, squaring = square
    nodes = (squaring, *mean_square.nodes, *((added,) if added is not None else ()), root)
    if mean_square.fault is not None:
        return Refused(mean_square.fault, nodes)
    norm = Normalised(source, mean_square.axes, epsilon, root.outputs[0], nodes)
    return _applied(norm, graph, inverted=exponent < 0)


def _is_about_mean(value: ir.Value, beside: ir.Node, graph: Facts) -> bool:
    """Return whether some mean is subtracted from the value."""
    node = producer_of(uncast(value, beside, graph)[0], beside, ("Sub",))
    return node is not None and isinstance(mean(node.inputs[1], beside, graph), Mean)


def _applied(norm: Normalised, graph: Facts, *, inverted: bool) -> Normalised | Refused:
    """Follow the root of the mean square to where the value is divided by it."""
    if not inverted:
        user = consumer_of(norm.result, graph, ("Reciprocal", "Div"))
        reciprocal = None if user is None else power(user, graph)
        if reciprocal is not None and reciprocal[1] == -1 and reciprocal[0] is norm.result:
            norm, inverted = after(norm, reciprocal[2]), True
    cast = consumer_of(norm.result, graph, ("Cast",))
    if cast is not None:  # back to half precision before the division
        narrow = ir.DataType(cast.attributes.get_int("to", 0))
        if narrow not in _NARROW or norm.epsilon < _NARROW[narrow]:
            return Refused("the deviation is cast to a type that does not represent it", (*norm.nodes, cast))
        norm = after(norm, cast)
    if inverted:
        return _multiplied(norm, graph)
    user = graph.sole_consumer(norm.result)
    if user is None:
        return Refused(_DEVIATION_READ_ELSEWHERE, norm.nodes)
    if user.op_type in ("Add", "Max", "Clip"):
        return Refused("epsilon is outside the square root", (*norm.nodes, user))
    if consumer_of(norm.result, graph, ("Div",)) is None or user.inputs[1] is not norm.result:
        return Refused(_NOT_A_DIVISION, (*norm.nodes, user))
    return _with_numerator(norm, user, user.inputs[0], graph) or Refused(_NUMERATOR_DIFFERS, (*norm.nodes, user))


def _multiplied(norm: Normalised, graph: Facts) -> Normalised | Refused:
    """Follow 1 / root to its product with the value, with the scale first, or with the difference multiplied out."""
    user = consumer_of(norm.result, graph, ("Mul",))
    if user is None:
        reason = _DEVIATION_READ_ELSEWHERE if graph.sole_consumer(norm.result) is None else _NOT_A_DIVISION
        return _multiplied_out(norm, graph) or Refused(reason, norm.nodes)
    other = other_operand(user, norm.result)
    divided = _with_numerator(norm, user, other, graph)
    if divided is not None:
        return divided
    if norm.scale is not None or other is None or other is norm.result:
        return Refused(_NUMERATOR_DIFFERS, (*norm.nodes, user))
    return _multiplied(replace(after(norm, user), scale=other), graph)


def _with_numerator(norm: Normalised, user: ir.Node, value: ir.Value | None, graph: Facts) -> Normalised | None:
    """Return the division if its numerator is the squared value, or that value scaled; otherwise None."""
    alike = None if value is None else same(value, norm.source, user, graph)
    if alike is not None:
        return after(norm, *alike, user)
    scaled = producer_of(value, user, ("Mul",)) if norm.scale is None else None
    if scaled is None:
        return None
    for first, scale in ((scaled.inputs[0], scaled.inputs[1]), (scaled.inputs[1], scaled.inputs[0])):
        alike = None if first is None else same(first, norm.source, user, graph)
        if alike is not None and scale is not None:
            return replace(after(norm, *alike, scaled, user), scale=scale)
    return None


def _multiplied_out(norm: Normalised, graph: Facts) -> Normalised | None:
    """Match x * r + (beta - mean * r), or x * r - mean * r, where r is the reciprocal root, scaled or not."""
    middle, factor = centred(norm.source, norm.end, graph), norm.result
    users = [use.node for use in factor.uses()]
    if not isinstance(middle, Centred) or len(users) != 2 or any(user.op_type != "Mul" for user in users):
        return None
    for first, second in (users, users[::-1]):
        if other_operand(first, factor) is not middle.source or other_operand(second, factor) is not middle.mean:
            continue
        for last, bias, between in _differences(first.outputs[0], second.outputs[0], graph):
            return replace(after(norm, *users, *between, last), bias=bias)
    return None


def _differences(
    first: ir.Value, second: ir.Value, graph: Facts
) -> Iterator[tuple[ir.Node, ir.Value | None, tuple[ir.Node, ...]]]:
    """Yield where `second` is subtracted from `first`, directly or from a bias: last node, bias, nodes between."""
    difference = consumer_of(second, graph, ("Sub",))
    if difference is None or difference.inputs[1] is not second or difference.inputs[0] is second:
        return
    if difference.inputs[0] is first:
        yield difference, None, ()
        return
    added = consumer_of(difference.outputs[0], graph, ("Add",))
    if added is not None and other_operand(added, difference.outputs[0]) is first:
        yield added, difference.inputs[0], (difference,)


def after(norm: Normalised, *nodes: ir.Node) -> Normalised:
    """Return the normalisation extended by these nodes."""
    return replace(norm, result=nodes[-1].outputs[0], nodes=(*norm.nodes, *nodes))


def same(value: ir.Value, other: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Return the nodes that compute `value` if it equals `other`: cast, or centred a second time; otherwise None."""
    if value is other:
        return ()
    (bare, casts), (wanted, _) = uncast(value, beside, graph), uncast(other, beside, graph)
    if bare is wanted:
        return casts
    if graph.dtype(bare) != graph.dtype(wanted):
        return None  # centring in different types gives different numbers
    first, second = centred(bare, beside, graph), centred(wanted, beside, graph)
    if not (isinstance(first, Centred) and isinstance(second, Centred)) or first.axes != second.axes:
        return None
    return (*first.nodes, *casts) if first.source is second.source else None


# Convert a recognised normalisation into the operands of one operator: input, scale, bias and type.
#
# The operators require a scale, with one number per normalised element. Constants of another shape are broadcast, and
# a scale of ones is created if there is none, up to a limit.

Weight = ir.Value | ir.TensorProtocol  # an existing value, or a new constant
SPREAD = 8192  # numbers of a broadcast scale; the largest hidden size of common models


def fused(
    norm: Normalised, source: ir.Value, before: tuple[ir.Node, ...], graph: Facts, *, bias: bool, widened: bool = False
) -> Match | Refused:
    """Return the match for one operator on `source`; `before` are the nodes from there to the value that is squared.

    Half-precision exports cast to a wider type, either among those nodes (`widened`) or before them, and back at the
    end; the operator does both itself.
    """
    nodes = (*before, *norm.nodes)
    bare, casts = (source, ()) if widened else uncast(source, norm.end, graph)
    narrow = _narrowed(norm, graph.dtype(bare), graph) if casts or widened else None
    if narrow is not None and graph.dtype(bare) == ir.DataType.BFLOAT16 and not bias:
        # The runtime has no RMSNormalization in bfloat16, and no Mul either: a model that has one does not run anyway.
        narrow = narrow if consumer_of(narrow.result, graph, ("Mul",)) is not None else None
    if narrow is not None:
        norm, source = narrow, bare
    elif widened:
        return Refused("it is computed in a wider type and not cast back", nodes)
    dtype, extent = graph.dtype(source), sizes(source, norm.axes, graph)
    if dtype is None or dtype not in FUSED_FLOATS or graph.dtype(norm.result) != dtype:
        return Refused(f"the operator does not compute in {dtype.name if dtype else 'an unknown type'}", nodes)
    if graph.dtype(squared := norm.source) == ir.DataType.FLOAT16:
        return Refused("its squares are computed in half precision, which overflows from 256 on", nodes)
    if dtype == ir.DataType.FLOAT and graph.dtype(squared) != dtype:
        return Refused("it is computed in double precision", nodes)
    if extent is None or 0 in extent:
        return Refused("the size of the normalised axes is unknown", nodes)
    affine = affine_after(norm, extent, graph, bias=bias)
    if affine is None:
        return Refused("scale or bias does not have one number per normalised element", nodes)
    if affine.scale is None and math.prod(extent) > SPREAD:
        return Refused("a scale of ones would be larger than what it replaces", nodes)
    nodes = (*before, *norm.nodes, *affine.nodes)
    if escaping_value(nodes, nodes[-1]) is not None:
        return Refused("a value inside is read elsewhere", nodes)
    scale = affine.scale if affine.scale is not None else ir.Tensor(np.ones(extent, dtype.numpy()), dtype=dtype)
    attributes = {"axis": None if norm.axes == 1 else -norm.axes, "epsilon": to_single(norm.epsilon)}

    def build(op: Builder) -> Replacement:
        inputs = (source, weight(scale, op, "scale"), weight(affine.bias, op, "bias"))
        return op.node("LayerNormalization" if bias else "RMSNormalization", inputs, attributes)

    return Match((*(casts if narrow is not None else ()), *nodes), build=build)


def _narrowed(norm: Normalised, dtype: ir.DataType | None, graph: Facts) -> Normalised | None:
    """Return the normalisation up to where it is cast back to that narrower type, otherwise None."""
    if dtype not in FUSED_FLOATS:
        return None
    if graph.dtype(norm.result) == dtype:
        return norm
    user = consumer_of(norm.result, graph, ("Cast",)) if norm.scale is None and norm.bias is None else None
    return after(norm, user) if user is not None and user.attributes.get_int("to", 0) == dtype else None


def weight(value: Weight | None, op: Builder, hint: str) -> ir.Value | None:
    """Return a scale or bias as an operand."""
    return value if value is None or isinstance(value, ir.Value) else op.constant(value, hint)


class Affine(Struct, frozen=True, eq=False):
    """Scale and bias that fit the normalised axes, if there are any, and the nodes that apply them."""

    scale: Weight | None
    bias: Weight | None
    nodes: tuple[ir.Node, ...]


def affine_after(norm: Normalised, extent: Sequence[int], graph: Facts, *, bias: bool) -> Affine | None:
    """Return what multiplies and then adds to the result, as far as it has one number per normalised element.

    Returns None if a scale or bias that is already part of the normalisation does not fit.
    """
    rank, value, nodes = graph.rank(norm.source), norm.result, list[ir.Node]()
    weights = dict[str, Weight]()
    for op_type, early in (("Mul", norm.scale), ("Add", norm.bias)):
        fits = None if early is None else fitting(early, extent, rank, graph)
        if fits is not None:
            weights[op_type] = fits
        elif early is not None:
            return None
    for op_type in ("Mul", "Add") if bias else ("Mul",):
        user = consumer_of(value, graph, (op_type,)) if op_type not in weights and norm.bias is None else None
        other = None if user is None else other_operand(user, value)
        weight = None if other is None else fitting(other, extent, rank, graph)
        if user is None or weight is None:
            continue
        weights[op_type], value = weight, user.outputs[0]
        nodes.append(user)
    return Affine(weights.get("Mul"), weights.get("Add"), tuple(nodes))


def fitting(value: ir.Value, extent: Sequence[int], rank: int | None, graph: Facts) -> Weight | None:
    """Return the value with one number per normalised element; a constant may be reshaped or broadcast for that."""
    shape = graph.shape(value)
    if shape is None or len(shape) > (rank or len(extent)):
        return None
    if shape == tuple(extent):
        return value
    tensor = graph.tensor(value)
    if tensor is None:
        return None
    if tuple(shape[len(shape) - len(extent) :]) == tuple(extent) and tensor.size == np.prod(extent):
        return reshaped(tensor, extent)
    broadcast = broadcast_constant(tensor, extent) if tensor.size <= np.prod(extent) <= SPREAD else None
    return ExpressionTensor(broadcast, tensor.dtype, extent) if isinstance(broadcast, Expression) else broadcast
