"""From a normalisation found in a graph to the operands of one operator: what goes in, its scale, its bias, its type.

The operators want one number of scale for each normalised element, and a scale at all; constants that say the same in
another shape are rewritten, and ones are made where nothing scales, as long as they are few.
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
from sardonyx.passes.norms._arithmetic import FUSED_FLOATS, escaping, partner, reader, single, spread, uncast
from sardonyx.passes.norms._means import sizes
from sardonyx.passes.norms._normalised import Normalised, after

Weight = ir.Value | ir.TensorProtocol  # a value as it is, or a constant to be made
SPREAD = 8192  # numbers of a scale that is stored though one would do; the widest hidden sizes of common models


def fused(
    found: Normalised, source: ir.Value, before: tuple[ir.Node, ...], graph: Facts, *, bias: bool, widened: bool = False
) -> Match | Refused:
    """The match for one operator on `source`; `before` are the nodes from there to what is squared.

    Half-precision exports cast to a wider type, among those nodes (`widened`) or in front of them, and back at the end;
    the operator does both itself.
    """
    nodes = (*before, *found.nodes)
    bare, casts = (source, ()) if widened else uncast(source, found.end, graph)
    narrow = _narrowed(found, graph.dtype(bare), graph) if casts or widened else None
    if narrow is not None and graph.dtype(bare) == ir.DataType.BFLOAT16 and not bias:
        # The runtime runs no RMSNormalization in bfloat16, and no product either: one that is there is lost already.
        narrow = narrow if reader(narrow.result, graph, "Mul") is not None else None
    if narrow is not None:
        found, source = narrow, bare
    elif widened:
        return Refused("it is computed in a wider type and not cast back", nodes)
    dtype, extent = graph.dtype(source), sizes(source, found.axes, graph)
    if dtype is None or dtype not in FUSED_FLOATS or graph.dtype(found.result) != dtype:
        return Refused(f"the operator does not compute in {dtype.name if dtype else 'an unknown type'}", nodes)
    if graph.dtype(squared := found.source) == ir.DataType.FLOAT16:
        return Refused("its squares are in half precision, and overflow from 256 on", nodes)
    if dtype == ir.DataType.FLOAT and graph.dtype(squared) != dtype:
        return Refused("it is computed in double precision", nodes)
    if extent is None or 0 in extent:
        return Refused("the size of the normalised axes is not known", nodes)
    affine = affine_after(found, extent, graph, bias=bias)
    if affine is None:
        return Refused("scale or bias has not one number for each normalised element", nodes)
    if affine.scale is None and math.prod(extent) > SPREAD:
        return Refused("a scale of ones would be larger than what it replaces", nodes)
    nodes = (*before, *found.nodes, *affine.nodes)
    if escaping(nodes, nodes[-1]) is not None:
        return Refused("a value inside is read elsewhere", nodes)
    return Match(
        (*(casts if narrow is not None else ()), *nodes),
        {
            "source": source,
            "scale": affine.scale if affine.scale is not None else ones(extent, dtype),
            "bias": affine.bias,
            "axis": None if found.axes == 1 else -found.axes,
            "epsilon": single(found.epsilon),
        },
    )


def _narrowed(found: Normalised, dtype: ir.DataType | None, graph: Facts) -> Normalised | None:
    """The normalisation up to where it is in that type, which is narrower than what it is computed in."""
    if dtype not in FUSED_FLOATS:
        return None
    if graph.dtype(found.result) == dtype:
        return found
    user = reader(found.result, graph, "Cast") if found.scale is None and found.bias is None else None
    return after(found, user) if user is not None and user.attributes.get_int("to", 0) == dtype else None


def weight(found: Weight | None, op: Builder, hint: str) -> ir.Value | None:
    """A scale or bias as an operand."""
    return found if found is None or isinstance(found, ir.Value) else op.constant(found, hint)


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """Scale and bias that fit the normalised axes, where there are any, and the nodes that apply them."""

    scale: Weight | None
    bias: Weight | None
    nodes: tuple[ir.Node, ...]


def affine_after(found: Normalised, extent: Sequence[int], graph: Facts, *, bias: bool) -> Affine | None:
    """What multiplies and then adds to the result, as far as it has one number for each normalised element.

    None where one was applied earlier on that does not fit.
    """
    rank, value, nodes = graph.rank(found.source), found.result, list[ir.Node]()
    weights = dict[str, Weight]()
    for op_type, early in (("Mul", found.scale), ("Add", found.bias)):
        fits = None if early is None else fitting(early, extent, rank, graph)
        if fits is not None:
            weights[op_type] = fits
        elif early is not None:
            return None
    for op_type in ("Mul", "Add") if bias else ("Mul",):
        user = reader(value, graph, op_type) if op_type not in weights and found.bias is None else None
        other = None if user is None else partner(user, value)
        weight = None if other is None or other is value else fitting(other, extent, rank, graph)
        if user is None or weight is None:
            continue
        weights[op_type], value = weight, user.outputs[0]
        nodes.append(user)
    return Affine(weights.get("Mul"), weights.get("Add"), tuple(nodes))


def fitting(value: ir.Value, extent: Sequence[int], rank: int | None, graph: Facts) -> Weight | None:
    """The value as one number for each normalised element; a constant may be reshaped or repeated for that."""
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
    array = spread(tensor, extent) if tensor.size <= np.prod(extent) <= SPREAD else None
    return None if array is None else ir.Tensor(array, dtype=tensor.dtype)


def ones(extent: Sequence[int], dtype: ir.DataType) -> ir.TensorProtocol:
    """A scale that changes nothing."""
    return ir.Tensor(np.ones(tuple(extent), dtype.numpy()), dtype=dtype)
