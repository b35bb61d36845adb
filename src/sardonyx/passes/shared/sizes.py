"""Sizes that have to be had at run time, and views of the last axes, built so that every layer shares them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts


def size_at(value: ir.Value, axis: int, op: Builder, graph: Facts) -> ir.Value:
    """One size of a value as a tensor [1], read off a graph input that has the very dim, so that twins share it."""
    shape = graph.shape(value)
    for source in op.scope.graph.inputs:
        for index, dim in enumerate(graph.shape(source) or ()):
            if shape is not None and dim == shape[axis]:
                return op.Shape(source, start=index, end=index + 1)
    return op.Shape(value, start=axis, end=axis + 1)


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
