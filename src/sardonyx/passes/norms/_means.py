"""Means over the last axes, and values about their mean: however reduced, scaled and viewed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Refused
from sardonyx.passes._matching import given, ints
from sardonyx.passes.norms._arithmetic import last_axes, made_by, near, scaling, uncast

_REDUCTIONS = ("ReduceMean", "ReduceSum")


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """A mean over the last axes that keeps them; or what is nearly one, with the reason why it is not."""

    source: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]
    fault: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Centred:
    """source - mean."""

    source: ir.Value
    mean: ir.Value
    axes: int
    nodes: tuple[ir.Node, ...]


def sizes(value: ir.Value, axes: int, graph: Facts) -> tuple[int, ...] | None:
    """The last sizes of a value, where they are numbers."""
    shape = graph.shape(value)
    last = None if shape is None else shape[len(shape) - axes :]
    numbers = [dim for dim in last or () if isinstance(dim, int)]
    return tuple(numbers) if len(numbers) == axes else None


def mean(value: ir.Value | None, beside: ir.Node, graph: Facts) -> Mean | None:
    """What a value is the mean of: ReduceMean, or ReduceSum divided by the size, or either without axes and a view."""
    result, factor, nodes = value, 1.0, list[ir.Node]()
    while (node := made_by(value, beside, "Reshape", "Unsqueeze", "Mul", "Div", *_REDUCTIONS)) is not None:
        nodes.append(node)
        scaled = scaling(node, graph)
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
    if axes is None and (given(node, "axes", 1) or node.attributes.get_int("noop_with_empty_axes", 0)):
        fault = "the axes of the mean are computed"
    elif count is None:
        fault = "the mean is not over the last axes"
    elif not _keeps_axes(node, result, nodes, count, graph):
        fault = "the mean drops its axes"
    elif not _is_mean(node, factor, count, graph):
        fault = "the sum is not divided by how many it adds" if node.op_type == "ReduceSum" else "the mean is scaled"
    return Mean(source, count or 0, tuple(reversed(nodes)), fault)


def _keeps_axes(node: ir.Node, result: ir.Value, nodes: list[ir.Node], count: int, graph: Facts) -> bool:
    """Whether the reduced axes are there with size one, after the views on the way."""
    if not any(each.op_type in ("Reshape", "Unsqueeze") for each in nodes):
        return bool(node.attributes.get_int("keepdims", 1))
    whole, shape = graph.shape(node.inputs[0]), graph.shape(result)
    if whole is None or shape is None or None in shape:
        return False
    return shape == (*whole[: len(whole) - count], *(1,) * count)


def _is_mean(node: ir.Node, factor: float, count: int, graph: Facts) -> bool:
    dtype = graph.dtype(node.inputs[0]) or ir.DataType.FLOAT
    if node.op_type == "ReduceMean":
        return near(factor, 1.0, dtype)
    assert node.inputs[0] is not None
    extent = sizes(node.inputs[0], count, graph)
    return extent is not None and near(factor * math.prod(extent), 1.0, dtype)


def centred(value: ir.Value, beside: ir.Node, graph: Facts) -> Centred | Refused | None:
    """What a value is the distance from the mean of."""
    node = made_by(value, beside, "Sub")
    if node is None or (source := node.inputs[0]) is None or (middle := node.inputs[1]) is None:
        return None
    found = mean(middle, beside, graph)
    if found is None or uncast(found.source, beside, graph)[0] is not uncast(source, beside, graph)[0]:
        return None
    if found.fault is not None:
        return Refused(found.fault, (*found.nodes, node))
    return Centred(source, middle, found.axes, (*found.nodes, node))
