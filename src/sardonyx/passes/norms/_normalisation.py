"""Recognise c / sqrt(mean(c * c) + eps), which layer and root-mean-square normalisation have in common.

The search starts at the square root. Operands may be in any order, with the casts of half-precision exports: to a wider
type, which preserves values, and of the root back to half. A scale may be applied before, in between, or not at all,
and the difference x - mean(x) may be multiplied out: x * r - mean(x) * r with r = 1 / sqrt(…).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.expressions import Expression
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.ir.tensors import ExpressionTensor, reshaped
from sardonyx.passes._matching import (
    consumer_of,
    ints,
    is_specified,
    optional,
    other_operand,
    producer_of,
    require,
    require_closed,
    required,
    value_and_factor,
    value_and_scalar,
)
from sardonyx.passes.norms._arithmetic import (
    FUSED_FLOATS,
    broadcast_constant,
    last_axes,
    near,
    power,
    to_single,
    uncast,
)

_REDUCTIONS = ("ReduceMean", "ReduceSum")
_MEAN_STEPS = ("Reshape", "Unsqueeze", "Mul", "Div", *_REDUCTIONS)
ROOTS = ("Sqrt", "Pow")
# Types to which exports cast a root computed in a wider type, and the least epsilon for which they represent it: the
# root of 2**-28 is the least normal number of half precision, and its reciprocal is in range.
_NARROW: Mapping[ir.DataType, float] = MappingProxyType({ir.DataType.FLOAT16: 2.0**-28, ir.DataType.BFLOAT16: 0.0})
_NUMERATOR_DIFFERS = "the divided value is not the one that is squared"
_DEVIATION_READ_ELSEWHERE = "the deviation is read elsewhere"
_NOT_A_DIVISION = "nothing is divided by the deviation"
_UNKNOWN_SIZE = "the size of the normalised axes is unknown"
_UNFIT_WEIGHT = "scale or bias does not have one number per normalised element"


class Mean(Struct, frozen=True, eq=False):
    """A mean over the last axes that keeps them; `fault` is why it is not exactly that, if so."""

    source: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]
    fault: str


class Centred(Struct, frozen=True, eq=False):
    """A value minus its mean."""

    source: ir.Value
    mean: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]
    fault: str  # of the mean


def sizes(value: ir.Value, axes: int, graph: Facts) -> tuple[int, ...] | None:
    """Return the last sizes of a value if they are static, otherwise None."""
    shape = graph.shape(value)
    last = None if shape is None else shape[len(shape) - axes :]
    numbers = [dim for dim in last or () if isinstance(dim, int)]
    return tuple(numbers) if len(numbers) == axes else None


@optional
def mean(value: ir.Value | None, beside: ir.Node, graph: Facts) -> Mean:
    """Return what a value is the mean of: a ReduceMean, or a ReduceSum divided by the size, maybe reshaped."""
    current, factor, nodes = required(value), 1.0, list[ir.Node]()
    while (node := required(producer_of(current, beside, _MEAN_STEPS))).op_type not in _REDUCTIONS:
        nodes.append(node)
        current, scale = (
            required(value_and_factor(node, graph)) if node.op_type in ("Mul", "Div") else (node.inputs[0], 1)
        )
        factor *= scale
    source, axes = required(node.inputs[0]), ints(node, "axes", 1, graph)
    count, own, shape = last_axes(axes, graph.rank(source)), graph.shape(source), graph.shape(value)
    keeps_axes = node.attributes.get_int("keepdims", 1) == 1
    if any(view.op_type in ("Reshape", "Unsqueeze") for view in nodes):
        keeps_axes = own is not None and shape == (*own[: len(own) - (count or 0)], *(1,) * (count or 0))
    extent = (1,) if node.op_type == "ReduceMean" else sizes(source, count or 0, graph)
    fault = ""
    if axes is None and (is_specified(node, "axes", 1) or node.attributes.get_int("noop_with_empty_axes", 0)):
        fault = "the axes of the mean are computed"
    elif count is None:
        fault = "the mean is not over the last axes"
    elif not keeps_axes:
        fault = "the mean drops its axes"
    elif extent is None or not near(factor * math.prod(extent), 1.0, graph.dtype(source) or ir.DataType.FLOAT):
        is_mean = node.op_type == "ReduceMean"
        fault = "the mean is scaled" if is_mean else "the sum is not divided by the number of its summands"
    return Mean(source, count or 0, (node, *reversed(nodes)), fault)


@optional
def centred(value: ir.Value, beside: ir.Node, graph: Facts) -> Centred:
    """Match source - mean(source)."""
    node = required(producer_of(value, beside, ("Sub",)))
    source, mean_value = map(required, node.inputs)
    mean_of = required(mean(mean_value, beside, graph))
    require(uncast(mean_of.source, beside, graph)[0] is uncast(source, beside, graph)[0])
    return Centred(source, mean_value, mean_of.axes, (*mean_of.nodes, node), mean_of.fault)


class Normalised(Struct, frozen=True, eq=False):
    """A value divided by the root of its mean square."""

    source: ir.Value  # the value that is squared
    axes: int  # the number of normalised last axes
    epsilon: float
    result: ir.Value
    nodes: tuple[ir.Node, ...]
    scale: Weight | None = None  # what the result is already multiplied by
    bias: Weight | None = None  # what is already added to it

    @property
    def end(self) -> ir.Node:
        """Return the node that produces the result."""
        return self.nodes[-1]

    def after(self, *nodes: ir.Node, **changed: Weight | None) -> Normalised:
        """Return the normalisation extended by these nodes."""
        return replace(self, result=nodes[-1].outputs[0], nodes=(*self.nodes, *nodes), **changed)


def normalised(root: ir.Node, graph: Facts, *, about_mean: bool) -> Normalised:
    """Return the normalisation with its square root at this node.

    With `about_mean` the value is centred about its mean (layer normalisation), otherwise it is not.
    """
    radicand, exponent = required(power(root, graph))
    require(exponent in (0.5, -0.5))
    added, epsilon = producer_of(radicand, root, ("Add",)), 0.0
    if added is not None:
        radicand, epsilon = required(value_and_scalar(added, graph))
        require(not epsilon < 0)
    mean_square = required(mean(radicand, root, graph))
    squaring = required(producer_of(mean_square.source, root, ("Mul", "Pow")))
    source, square = required(power(squaring, graph))
    subtraction = producer_of(uncast(source, root, graph)[0], root, ("Sub",))
    is_about_mean = subtraction is not None and mean(subtraction.inputs[1], root, graph) is not None
    require(square == 2 and is_about_mean == about_mean)
    nodes = (squaring, *mean_square.nodes, *(() if added is None else (added,)), root)
    require(not mean_square.fault, mean_square.fault, *nodes)
    norm = Normalised(source, mean_square.axes, epsilon, root.outputs[0], nodes)
    return _applied(norm, graph, inverted=exponent < 0)


def _applied(norm: Normalised, graph: Facts, *, inverted: bool) -> Normalised:
    """Follow the root of the mean square to where the value is divided by it."""
    inverse = None if inverted else consumer_of(norm.result, graph, ("Reciprocal", "Div"))
    if inverse is not None and power(inverse, graph) == (norm.result, -1.0):
        norm, inverted = norm.after(inverse), True
    cast = consumer_of(norm.result, graph, ("Cast",))
    if cast is not None:  # back to half precision before the division
        is_represented = norm.epsilon >= _NARROW.get(ir.DataType(cast.attributes.get_int("to", 0)), math.inf)
        require(is_represented, "the deviation is cast to a type that does not represent it", *norm.nodes, cast)
        norm = norm.after(cast)
    if inverted:
        return _multiplied(norm, graph)
    user = required(graph.sole_consumer(norm.result), _DEVIATION_READ_ELSEWHERE, *norm.nodes)
    nodes = (*norm.nodes, user)
    require(user.op_type not in ("Add", "Max", "Clip"), "epsilon is outside the square root", *nodes)
    is_divisor = consumer_of(norm.result, graph, ("Div",)) is not None and user.inputs[1] is norm.result
    require(is_divisor, _NOT_A_DIVISION, *nodes)
    return required(_with_numerator(norm, user, user.inputs[0], graph), _NUMERATOR_DIFFERS, *nodes)


def _multiplied(norm: Normalised, graph: Facts) -> Normalised:
    """Follow 1 / root to its product with the value, with the scale first, or with the difference multiplied out."""
    user = consumer_of(norm.result, graph, ("Mul",))
    if user is None:
        reason = _DEVIATION_READ_ELSEWHERE if graph.sole_consumer(norm.result) is None else _NOT_A_DIVISION
        return required(_multiplied_out(norm, graph), reason, *norm.nodes)
    other = other_operand(user, norm.result)
    divided = _with_numerator(norm, user, other, graph)
    if divided is not None:
        return divided
    may_scale = norm.scale is None and other is not None and other is not norm.result
    require(may_scale, _NUMERATOR_DIFFERS, *norm.nodes, user)
    return _multiplied(norm.after(user, scale=other), graph)


def _with_numerator(norm: Normalised, user: ir.Node, value: ir.Value | None, graph: Facts) -> Normalised | None:
    """Return the division if its numerator is the squared value, or that value scaled; otherwise None."""
    alike = same(value, norm.source, user, graph)
    if alike is not None:
        return norm.after(*alike, user)
    scaled = producer_of(value, user, ("Mul",)) if norm.scale is None else None
    for first, scale in () if scaled is None else (scaled.inputs, scaled.inputs[::-1]):
        alike = same(first, norm.source, user, graph)
        if scaled is not None and alike is not None and scale is not None:
            return norm.after(*alike, scaled, user, scale=scale)
    return None


def _multiplied_out(norm: Normalised, graph: Facts) -> Normalised | None:
    """Match x * r + (beta - mean * r), or x * r - mean * r, where r is the reciprocal root, scaled or not."""
    middle, factor = centred(norm.source, norm.end, graph), norm.result
    users = [use.node for use in factor.uses()]
    if middle is None or middle.fault or len(users) != 2 or any(user.op_type != "Mul" for user in users):
        return None
    for first, second in (users, users[::-1]):
        if other_operand(first, factor) is not middle.source or other_operand(second, factor) is not middle.mean:
            continue
        product, subtracted = first.outputs[0], second.outputs[0]
        difference = consumer_of(subtracted, graph, ("Sub",))
        if difference is None or difference.inputs[1] is not subtracted or difference.inputs[0] is subtracted:
            continue
        if difference.inputs[0] is product:
            return norm.after(*users, difference)
        added = consumer_of(difference.outputs[0], graph, ("Add",))
        if added is not None and other_operand(added, difference.outputs[0]) is product:
            return norm.after(*users, difference, added, bias=difference.inputs[0])
    return None


@optional
def same(value: ir.Value | None, other: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Node, ...]:
    """Return the nodes that compute `value` if it equals `other`: cast, or centred a second time."""
    value = required(value)
    if value is other:
        return ()
    (bare, casts), (wanted, _) = uncast(value, beside, graph), uncast(other, beside, graph)
    if bare is wanted:
        return casts
    require(graph.dtype(bare) == graph.dtype(wanted))  # centring in different types gives different numbers
    first, second = required(centred(bare, beside, graph)), required(centred(wanted, beside, graph))
    require(not first.fault and not second.fault)
    require(first.axes == second.axes and first.source is second.source)
    return (*first.nodes, *casts)


# Convert a recognised normalisation into the operands of one operator: input, scale, bias and type.
#
# The operators require a scale, with one number per normalised element. Constants of another shape are broadcast, and
# a scale of ones is created if there is none, up to a limit.

Weight = ir.Value | ir.TensorProtocol  # an existing value, or a new constant
MAX_BROADCAST_SCALE = 8192  # numbers of a broadcast scale; the largest hidden size of common models


def fused(
    norm: Normalised, source: ir.Value, before: tuple[ir.Node, ...], graph: Facts, *, bias: bool, widened: bool = False
) -> Match:
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
    norm, source, casts = (norm, source, ()) if narrow is None else (narrow, bare, casts)
    require(narrow is not None or not widened, "it is computed in a wider type and not cast back", *nodes)
    dtype, squared, extent = graph.dtype(source), graph.dtype(norm.source), sizes(source, norm.axes, graph)
    refusal = f"the operator does not compute in {dtype.name if dtype else 'an unknown type'}"
    dtype = required(dtype if dtype in FUSED_FLOATS and graph.dtype(norm.result) == dtype else None, refusal, *nodes)
    is_half, is_double = squared == ir.DataType.FLOAT16, dtype == ir.DataType.FLOAT and squared != dtype
    require(not is_half, "its squares are computed in half precision, which overflows from 256 on", *nodes)
    require(not is_double, "it is computed in double precision", *nodes)
    extent = required(None if extent is None or 0 in extent else extent, _UNKNOWN_SIZE, *nodes)
    norm = required(_with_affine(norm, extent, graph, bias=bias), _UNFIT_WEIGHT, *nodes)
    is_small = norm.scale is not None or math.prod(extent) <= MAX_BROADCAST_SCALE
    require(is_small, "a scale of ones would be larger than what it replaces", *nodes)
    nodes = (*before, *norm.nodes)
    require_closed(nodes)
    scale = norm.scale if norm.scale is not None else ir.Tensor(np.ones(extent, dtype.numpy()), dtype=dtype)
    attributes = {"axis": None if norm.axes == 1 else -norm.axes, "epsilon": to_single(norm.epsilon)}

    def build(op: Builder) -> Replacement:
        inputs = (source, weight(scale, op, "scale"), weight(norm.bias, op, "bias"))
        return op.node("LayerNormalization" if bias else "RMSNormalization", inputs, attributes)

    return Match((*casts, *nodes), build=build)


def _narrowed(norm: Normalised, dtype: ir.DataType | None, graph: Facts) -> Normalised | None:
    """Return the normalisation up to where it is cast back to that narrower type, otherwise None."""
    if dtype not in FUSED_FLOATS or graph.dtype(norm.result) == dtype:
        return norm if dtype in FUSED_FLOATS else None
    user = consumer_of(norm.result, graph, ("Cast",)) if norm.scale is None and norm.bias is None else None
    return norm.after(user) if user is not None and user.attributes.get_int("to", 0) == dtype else None


def weight(value: Weight | None, op: Builder, hint: str) -> ir.Value | None:
    """Return a scale or bias as an operand."""
    return value if value is None or isinstance(value, ir.Value) else op.constant(value, hint)


def _with_affine(norm: Normalised, extent: Sequence[int], graph: Facts, *, bias: bool) -> Normalised | None:
    """Return the normalisation with what multiplies and then adds to the result and has one number per element.

    Returns None if a scale or bias that is already part of the normalisation does not fit.
    """
    rank, has_bias = graph.rank(norm.source), norm.bias is not None
    weights = {
        op_type: fitting(early, extent, rank, graph)
        for op_type, early in (("Mul", norm.scale), ("Add", norm.bias))
        if isinstance(early, ir.Value)
    }
    if None in weights.values():
        return None
    for op_type in ("Mul", "Add") if bias else ("Mul",):
        user = consumer_of(norm.result, graph, (op_type,)) if op_type not in weights and not has_bias else None
        other = None if user is None else other_operand(user, norm.result)
        fits = None if other is None else fitting(other, extent, rank, graph)
        if user is not None and fits is not None:
            weights[op_type], norm = fits, norm.after(user)
    return replace(norm, scale=weights.get("Mul"), bias=weights.get("Add"))


@optional
def fitting(value: ir.Value, extent: Sequence[int], rank: int | None, graph: Facts) -> Weight:
    """Return the value with one number per normalised element; a constant may be reshaped or broadcast for that."""
    shape, wanted = required(graph.shape(value)), tuple(extent)
    require(len(shape) <= (rank or len(extent)))
    if shape == wanted:
        return value
    tensor = required(graph.tensor(value))
    if shape[len(shape) - len(extent) :] == wanted and tensor.size == math.prod(extent):
        return reshaped(tensor, extent)
    require(tensor.size <= math.prod(extent) <= MAX_BROADCAST_SCALE)
    broadcast = required(broadcast_constant(tensor, extent))
    return ExpressionTensor(broadcast, tensor.dtype, extent) if isinstance(broadcast, Expression) else broadcast
