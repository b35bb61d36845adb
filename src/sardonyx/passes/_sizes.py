"""Sizes that have to be had at run time, and views of the last axes, built so that every layer shares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Dim, Facts, Shape


def size_at(value: ir.Value, axis: int, op: Builder, graph: Facts) -> ir.Value:
    """One size of a value as a tensor [1]."""
    shape = graph.shape(value)
    found = None if shape is None else size_of(shape[axis], (), op, graph)
    return op.Shape(value, start=axis, end=axis + 1) if found is None else found


def size_of(dim: Dim, values: Sequence[ir.Value], op: Builder, graph: Facts) -> ir.Value | None:
    """A size as a tensor [1], read off a graph input that has the very dim, so that twins share it, or off a value."""
    if isinstance(dim, int):
        return op.constant(np.array([dim], np.int64), "size")
    found = holder_of(dim, (*op.scope.graph.inputs, *values), graph)
    return None if found is None else op.Shape(found[0], start=found[1], end=found[1] + 1)


def holder_of(dim: Dim, values: Sequence[ir.Value], graph: Facts) -> tuple[ir.Value, int] | None:
    """The first of these values that has a dim, and where."""
    for value in values:
        shape = graph.shape(value)
        if shape is not None and dim in shape:
            return value, shape.index(dim)
    return None


def inserted_axes(source: Shape | None, result: Shape | None) -> tuple[int, ...] | None:
    """Where axes of one have to be put in to make `result` of `source`; None where that is not the way."""
    if source is None or result is None:
        return None
    left, axes = list(source), list[int]()
    for axis, dim in enumerate(result):
        if left and dim == left[0]:
            left.pop(0)
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return None if left else tuple(axes)


def merged_last(value: ir.Value, op: Builder, graph: Facts) -> ir.Value:
    """[a, b, c, d] seen as [a, b, c x d], where c and d are numbers."""
    shape = graph.shape(value)
    assert shape is not None
    *_, last, size = shape
    assert isinstance(last, int)
    assert isinstance(size, int)
    target = op.constant(np.array([0] * (len(shape) - 2) + [last * size], np.int64), "target")
    return op.learn(op.Reshape(value, target), graph.dtype(value), (*shape[:-2], last * size))


def split_last(value: ir.Value, like: ir.Value, op: Builder, graph: Facts) -> ir.Value:
    """[a, b, c x d] seen as the [a, b, c, d] that another value is, where c and d are numbers."""
    shape = graph.shape(like)
    assert shape is not None
    target = op.constant(np.array([0] * (len(shape) - 2) + list(shape[-2:]), np.int64), "target")
    return op.Reshape(value, target)
