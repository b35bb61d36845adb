"""Convert a recognised normalisation into the operands of one operator: input, scale, bias and type.

The operators require a scale, with one number per normalised element. Constants of another shape are broadcast, and a
scale of ones is created if there is none, up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused
from sardonyx.ir.tensors import reshaped
from sardonyx.passes._matching import consumer_of, other_operand
from sardonyx.passes.norms._arithmetic import FUSED_FLOATS, broadcast_constant, escaping_value, to_single, uncast
from sardonyx.passes.norms._normalisation import Normalised, after, sizes

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
    return Match(
        (*(casts if narrow is not None else ()), *nodes),
        {
            "source": source,
            "scale": affine.scale if affine.scale is not None else ones(extent, dtype),
            "bias": affine.bias,
            "axis": None if norm.axes == 1 else -norm.axes,
            "epsilon": to_single(norm.epsilon),
        },
    )


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


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
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
        weight = None if other is None or other is value else fitting(other, extent, rank, graph)
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
    array = broadcast_constant(tensor, extent) if tensor.size <= np.prod(extent) <= SPREAD else None
    return None if array is None else ir.Tensor(array, dtype=tensor.dtype)


def ones(extent: Sequence[int], dtype: ir.DataType) -> ir.TensorProtocol:
    """Return a scale of ones."""
    return ir.Tensor(np.ones(tuple(extent), dtype.numpy()), dtype=dtype)
