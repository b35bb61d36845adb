"""Recognize causal masks: constant triangles, Trilu, and comparisons of positions."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from sardonyx.analysis.fingerprint.graph_view import GraphView
from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.ops import ORDERS, READS_SHAPE
from sardonyx.ir.scopes import is_constant

_POSITIONS = frozenset({"Range", "CumSum"})
_LEAVES = READS_SHAPE | {"Range"}
_CORNER = 64  # rows and columns of a constant mask that are read
_BLOCKED = -1e4  # an additive mask blocks a position with this value or less; the least float16 is -65504


class Masks:
    """Recognizes the causal masks of one model; results are cached for each value."""

    def __init__(self, view: GraphView, ends: Container[ir.Node]) -> None:
        self._view = view
        self._ends = ends
        self._is_causal: dict[ir.Value, bool] = {}

    def causal(self, value: ir.Value) -> bool:
        """Return whether a value, or one it is computed from up to the nearest layers, is a causal mask."""
        waiting, seen = [value], {value}
        while waiting:
            current = waiting.pop()
            is_causal = self._is_causal.get(current)
            if is_causal is None:
                is_causal = self._is_causal[current] = self._hides_later(current)
            if is_causal:
                self._is_causal[value] = True
                return True
            producer = current.producer()
            if producer is None or producer in self._ends or self._view.names[producer] in _LEAVES:
                continue
            for source in producer.inputs:
                if source is not None and source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return False

    def _hides_later(self, value: ir.Value) -> bool:
        """Return whether a value itself separates later positions from earlier ones."""
        tensor = _tensor(value)
        if tensor is not None:
            return is_triangle(tensor)
        producer = value.producer()
        if producer is None:
            return False
        if self._view.names[producer] == "Trilu":
            return not self._view.is_data(producer.inputs[0]) and not any(map(_flips, self._view.readers(value)))
        return self._view.names[producer] in ORDERS and self._compares_positions(producer)

    def _compares_positions(self, comparison: ir.Node) -> bool:
        """Return whether positions are compared with positions, not with a number or a length."""
        one, other = comparison.inputs[0], comparison.inputs[1]
        if one is None or other is None:
            return False
        return self._is_position(one) and self._is_position(other)

    def _is_position(self, start: ir.Value) -> bool:
        """Return whether a value counts positions: it is computed from a range or a running sum."""
        waiting, seen = [start], {start}
        counts = False
        while waiting:
            value = waiting.pop()
            tensor = _tensor(value)
            if tensor is not None:
                counts = counts or _is_range(tensor)
                continue
            producer = value.producer()
            if producer is None or producer in self._ends:
                continue
            name = self._view.names[producer]
            if name in _POSITIONS:
                counts = True
            elif name not in _LEAVES:
                for source in producer.inputs:
                    if source is not None and source not in seen:
                        seen.add(source)
                        waiting.append(source)
        return counts


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the constant tensor of a value, otherwise None."""
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    return constant_tensor(producer) if producer is not None and is_constant(producer) else None


def _flips(node: ir.Node) -> bool:
    """Return whether a node reverses an axis: such a triangle cuts off the corners of a window and is not causal."""
    steps = node.inputs[4] if node.op_type == "Slice" and len(node.inputs) > 4 else None
    tensor = _tensor(steps) if steps is not None else None
    return tensor is not None and bool((tensor.numpy() < 0).any())


def is_triangle(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant has one value on the diagonal and another right of it; only one corner is read."""
    dims = tuple(tensor.shape.numpy())
    if len(dims) < 2 or min(dims[-2:]) < 2 or min(dims) < 1 or tensor.dtype == ir.DataType.STRING:
        return False
    corner = tensor.numpy()[(0,) * (len(dims) - 2)][:_CORNER, :_CORNER]  # masks are often repeated over the batch
    size = min(corner.shape)
    corner = corner[:size, :size].astype(np.float64)
    later = corner[np.triu_indices(size, 1)]
    diagonal = np.diagonal(corner)
    if tensor.dtype.is_floating_point() and (later <= _BLOCKED).all():
        return bool((diagonal > _BLOCKED).all())
    return bool(
        (later == later[0]).all()
        and (diagonal != later[0]).all()
        and (diagonal == diagonal[0]).all()
        and {later[0], diagonal[0]} == {0, 1}
    )


def _is_range(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant counts up by one."""
    if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or not 2 <= tensor.size <= 1 << 16:
        return False
    return bool((np.diff(tensor.numpy().reshape(-1)) == 1).all())
