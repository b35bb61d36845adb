"""Which numbers an additive attention mask may contain, and how strongly they mask a score.

The numbers are those of constants, followed through Where and through operators that only move data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MOVES_DATA
from sardonyx.ir.rules import Builder
from sardonyx.ir.scopes import operator

MAX_MASK_BYTES = 1 << 24  # of a constant mask that is read
_MAX_BIAS = 64.0  # numbers up to this magnitude bias the scores and mask no key
# Adding a number between these rounds a score noticeably but does not swallow it.
_COARSE_RANGE = (2.0**14, 1e9)
_MAX_VISITED_NODES = 64  # visited to find the least number of a mask
_MOVES = MOVES_DATA - {"Split"}  # those with one result


class Choice(Struct, frozen=True, eq=False):
    """A Where between constants, followed by nodes that only move data."""

    nodes: tuple[ir.Node, ...]
    branches: tuple[np.ndarray, np.ndarray]

    def write(self, op: Builder) -> ir.Value:
        """Build the same nodes with the lowest number of the type replaced by the next larger one."""
        where, *moves = self.nodes
        value = op.Where(where.inputs[0], *(op.constant(above_lowest(branch), "mask") for branch in self.branches))
        for move in moves:
            value = op.like(move, (value, *move.inputs[1:]))
        return value


class MaskValues(Struct, frozen=True, eq=False):
    """What is known about the numbers in a mask; `numbers` is None if they are unknown."""

    numbers: np.ndarray | None = None
    factor: float = 0.0  # for a product with a scalar constant: that constant
    choice: Choice | None = None
    shows_in_every_row: bool = False  # a constant that masks no row entirely

    @property
    def is_zero(self) -> bool:
        """Return whether the mask changes no score."""
        return self.numbers is not None and not self.numbers.any()

    def may_hold(self, number: np.ndarray) -> bool:
        """Return whether the mask may contain the number."""
        return self.numbers is None or bool((self.numbers == number).any())

    @property
    def is_bias(self) -> bool:
        """Return whether the mask certainly masks no key."""
        return self.numbers is not None and bool((np.abs(self.numbers) <= _MAX_BIAS).all())

    @property
    def hides_by_infinity(self) -> bool:
        """Return whether the mask certainly masks keys by -inf only."""
        return self.numbers is not None and bool(
            ((np.abs(self.numbers) <= _MAX_BIAS) | (self.numbers == -np.inf)).all()
        )

    @property
    def is_coarse(self) -> bool:
        """Return whether the mask is known to contain a number that rounds scores without swallowing them."""
        numbers = np.array([self.factor]) if self.numbers is None else self.numbers
        magnitude = np.abs(numbers.astype(np.float64))
        return bool(((magnitude > _COARSE_RANGE[0]) & (magnitude < _COARSE_RANGE[1])).any())


def values_of(value: ir.Value, graph: Facts) -> MaskValues:
    """Return what is known about the numbers in a mask."""
    moves: list[ir.Node] = []
    while (array := graph.array(value, MAX_MASK_BYTES)) is None:
        node = value.producer()
        source = node.inputs[0] if node is not None and operator(node) in _MOVES else None
        if node is None or source is None:
            return MaskValues() if node is None or node.domain else _computed(node, tuple(moves), graph)
        moves.insert(0, node)
        value = source
    if array.dtype.kind != "f":
        return MaskValues()
    shows = not moves and array.ndim > 0 and bool(array.size) and bool((array.max(axis=-1) >= -_MAX_BIAS).all())
    return MaskValues(array.reshape(-1), shows_in_every_row=shows)


def _computed(node: ir.Node, moves: tuple[ir.Node, ...], graph: Facts) -> MaskValues:
    """Return the numbers of a Where between constants, or the factor of a product with one."""
    if node.op_type == "Mul":
        factors = [graph.scalar(value) for value in node.inputs]
        return MaskValues(factor=next((float(factor) for factor in factors if factor is not None), 0.0))
    one, two = map(graph.array, node.inputs[1:]) if node.op_type == "Where" else (None, None)
    if one is None or two is None or one.dtype.kind != "f":
        return MaskValues()
    numbers = np.concatenate([one.reshape(-1), two.reshape(-1)])
    return MaskValues(numbers, choice=Choice((node, *moves), (one, two)))


def leaves_every_row(mask: ir.Value, graph: Facts, *, causal: bool) -> bool:
    """Return whether every row of a mask certainly contains a number above the lowest one of its type.

    With `causal`, only the keys up to the diagonal count. Kernels agree only on such masks: for a fully masked row they
    return 0, NaN or the mean of the values.
    """
    array = graph.array(mask, MAX_MASK_BYTES)
    if array is not None and array.ndim > 1 and array.size:
        visible = np.where(np.tri(*array.shape[-2:], dtype=bool), array, -np.inf) if causal else array
        return bool((visible.max(axis=-1) > lowest(array.dtype)).all())
    least = _least(mask, graph, {})
    return least is not None and bool(least > lowest(least.dtype))


def _least(value: ir.Value | None, graph: Facts, memo: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    """Return a lower bound of all elements of a mask, or None if it is unknown."""
    if value is None or len(memo) >= _MAX_VISITED_NODES or value in memo:
        return None if value is None or len(memo) >= _MAX_VISITED_NODES else memo[value]
    memo[value] = None
    array, node = graph.array(value, MAX_MASK_BYTES), value.producer()
    if array is not None:
        memo[value] = np.asarray(array.min()) if array.dtype.kind == "f" and array.size else None
    elif node is not None and operator(node) in _MOVES:
        memo[value] = _least(node.inputs[0], graph, memo)
    elif node is not None and operator(node) in ("Where", "Add"):
        one, two = (_least(summand, graph, memo) for summand in node.inputs[-2:])
        if one is not None and two is not None:
            with np.errstate(over="ignore"):
                memo[value] = np.asarray(one + two if node.op_type == "Add" else np.minimum(one, two))
    return memo[value]


def above_lowest(numbers: np.ndarray) -> np.ndarray:
    """Replace the lowest number by the next larger one (`support.ATTENTION_LOWEST`)."""
    least = lowest(numbers.dtype)
    return np.where(numbers == least, np.nextafter(least, numbers.dtype.type(0)), numbers)


def shrinking(dtype: ir.DataType) -> np.ndarray:
    """Return the largest number below one; multiplying by it makes every number but 0 and -inf smaller by one step."""
    one = np.ones((), dtype.numpy())
    return np.asarray(np.nextafter(one, np.zeros_like(one)))


def lowest(dtype: np.dtype[Any]) -> np.ndarray:
    """Return the lowest finite number of a type."""
    return np.array(np.finfo(dtype).min, dtype)
