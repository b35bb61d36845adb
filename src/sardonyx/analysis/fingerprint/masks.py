"""Whether a mask lets a position see only what comes before it: triangles, and comparisons of positions."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from sardonyx.analysis.fingerprint.graph_reading import Reading
from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.ops import ORDERS, READS_SHAPE
from sardonyx.ir.scopes import is_constant

_POSITIONS = frozenset({"Range", "CumSum"})
_LEAVES = READS_SHAPE | {"Range"}
_CORNER = 64  # rows and columns of a constant mask that are looked at
_BLOCKED = -1e4  # what a mask of numbers adds where it blocks, or less; float16 has no more than -65504


class Masks:
    """What is known of the masks of one model; each is looked through once."""

    def __init__(self, reading: Reading, ends: Container[ir.Node]) -> None:
        self._reading = reading
        self._ends = ends
        self._known: dict[ir.Value, bool] = {}

    def causal(self, value: ir.Value) -> bool:
        """Whether what a value is made from, up to the nearest layers, hides what comes later."""
        waiting, seen = [value], {value}
        while waiting:
            each = waiting.pop()
            found = self._known.get(each)
            if found is None:
                found = self._known[each] = self._hides(each)
            if found:
                self._known[value] = True
                return True
            maker = each.producer()
            if maker is None or maker in self._ends or self._reading.names[maker] in _LEAVES:
                continue
            for source in maker.inputs:
                if source is not None and source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return False

    def _hides(self, value: ir.Value) -> bool:
        """Whether a value is itself where the later positions are told apart."""
        tensor = _tensor(value)
        if tensor is not None:
            return is_triangle(tensor)
        maker = value.producer()
        if maker is None:
            return False
        if self._reading.names[maker] == "Trilu":
            return not self._reading.is_data(maker.inputs[0]) and not any(map(_mirrors, self._reading.readers(value)))
        return self._reading.names[maker] in ORDERS and self._orders(maker)

    def _orders(self, comparison: ir.Node) -> bool:
        """Whether positions are compared with positions, not with a number or a length."""
        one, other = comparison.inputs[0], comparison.inputs[1]
        if one is None or other is None:
            return False
        return self._is_position(one) and self._is_position(other)

    def _is_position(self, start: ir.Value) -> bool:
        """Whether a value counts positions: it comes from a range or a running sum."""
        waiting, seen = [start], {start}
        counts = False
        while waiting:
            value = waiting.pop()
            tensor = _tensor(value)
            if tensor is not None:
                counts = counts or _is_range(tensor)
                continue
            maker = value.producer()
            if maker is None or maker in self._ends:
                continue
            name = self._reading.names[maker]
            if name in _POSITIONS:
                counts = True
            elif name not in _LEAVES:
                for source in maker.inputs:
                    if source is not None and source not in seen:
                        seen.add(source)
                        waiting.append(source)
        return counts


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The constant of a value."""
    if value.is_initializer():
        return value.const_value
    maker = value.producer()
    return constant_tensor(maker) if maker is not None and is_constant(maker) else None


def _mirrors(node: ir.Node) -> bool:
    """Whether a node turns an axis around: such a triangle cuts off the corners of a window."""
    steps = node.inputs[4] if node.op_type == "Slice" and len(node.inputs) > 4 else None
    tensor = _tensor(steps) if steps is not None else None
    return tensor is not None and bool((tensor.numpy() < 0).any())


def is_triangle(tensor: ir.TensorProtocol) -> bool:
    """Whether a constant tells what is right of the diagonal from what is on it; only a corner is read."""
    dims = tuple(tensor.shape.numpy())
    if len(dims) < 2 or min(dims[-2:]) < 2 or min(dims) < 1 or tensor.dtype == ir.DataType.STRING:
        return False
    corner = tensor.numpy()[(0,) * (len(dims) - 2)][:_CORNER, :_CORNER]  # masks are often repeated for a whole batch
    size = min(corner.shape)
    corner = corner[:size, :size].astype(np.float64)
    later = corner[np.triu_indices(size, 1)]
    own = np.diagonal(corner)
    if tensor.dtype.is_floating_point() and (later <= _BLOCKED).all():
        return bool((own > _BLOCKED).all())
    return bool(
        (later == later[0]).all() and (own != later[0]).all() and (own == own[0]).all() and {later[0], own[0]} == {0, 1}
    )


def _is_range(tensor: ir.TensorProtocol) -> bool:
    """Whether a constant counts up by one."""
    if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or not 2 <= tensor.size <= 1 << 16:
        return False
    return bool((np.diff(tensor.numpy().reshape(-1)) == 1).all())
