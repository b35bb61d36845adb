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

LARGE_CONSTANT = 1 << 24  # bytes of a constant mask that is read
_BIAS = 64.0  # numbers up to this magnitude bias the scores and mask no key
# Adding a number between these rounds a score noticeably but does not swallow it.
_COARSE = (2.0**14, 1e9)
_MOST_NODES = 64  # visited to find the least number of a mask
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
        return self.numbers is not None and bool((np.abs(self.numbers) <= _BIAS).all())

    @property
    def hides_by_infinity(self) -> bool:
        """Return whether the mask certainly masks keys by -inf only."""
        return self.numbers is not None and bool(((np.abs(self.numbers) <= _BIAS) | (self.numbers == -np.inf)).all())

    @property
    def is_coarse(self) -> bool:
        """Return whether the mask is known to contain a number that rounds scores without swallowing them."""
        numbers = np.array([self.factor]) if self.numbers is None else self.numbers
        magnitude = np.abs(numbers.astype(np.float64))
        return bool(((magnitude > _COARSE[0]) & (magnitude < _COARSE[1])).any())


def values_of(value: ir.Value, graph: Facts) -> MaskValues:
    """Return what is known about the numbers in a mask."""
    moves: list[ir.Node] = []
    while graph.array(value, LARGE_CONSTANT) is None:
        producer = value.producer()
        if producer is None or producer.domain:
            return MaskValues()
        source = producer.inputs[0] if producer.op_type in _MOVES else None
        if source is None:
            return _computed(producer, tuple(moves), graph)
        moves.insert(0, producer)
        value = source
    array = graph.array(value, LARGE_CONSTANT)
    assert array is not None
    if array.dtype.kind != "f":
        return MaskValues()
    shows = not moves and array.ndim > 0 and bool(array.size) and bool((array.max(axis=-1) >= -_BIAS).all())
    return MaskValues(array.reshape(-1), shows_in_every_row=shows)


def _computed(node: ir.Node, moves: tuple[ir.Node, ...], graph: Facts) -> MaskValues:
    """Return the numbers of a Where between constants, or the factor of a product with one."""
    if node.op_type == "Mul":
        factors = [graph.scalar(value) for value in node.inputs]
        return MaskValues(factor=next((float(factor) for factor in factors if factor is not None), 0.0))
    branches = [graph.array(value) for value in node.inputs[1:]] if node.op_type == "Where" else []
    if len(branches) != 2 or branches[0] is None or branches[1] is None or branches[0].dtype.kind != "f":
        return MaskValues()
    one, two = branches[0], branches[1]
    numbers = np.concatenate([one.reshape(-1), two.reshape(-1)])
    return MaskValues(numbers, choice=Choice((node, *moves), (one, two)))


def leaves_every_row(mask: ir.Value, graph: Facts, *, causal: bool) -> bool:
    """Return whether every row of a mask certainly contains a number above the lowest one of its type.

    With `causal`, only the keys up to the diagonal count. Kernels agree only on such masks: for a fully masked row they
    return 0, NaN or the mean of the values.
    """
    array = graph.array(mask, LARGE_CONSTANT)
    if array is not None and array.ndim > 1 and array.size:
        visible = np.where(np.tri(*array.shape[-2:], dtype=bool), array, -np.inf) if causal else array
        return bool((visible.max(axis=-1) > lowest(array.dtype)).all())
    least = _least(mask, graph, {})
    return least is not None and bool(least > lowest(least.dtype))


def _least(value: ir.Value | None, graph: Facts, memo: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    """Return a lower bound of all elements of a mask, or None if it is unknown."""
    if value is None or len(memo) >= _MOST_NODES:
        return None
    if value not in memo:
        memo[value] = None
        memo[value] = _least_of(value, graph, memo)
    return memo[value]


def _least_of(value: ir.Value, graph: Facts, memo: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    array = graph.array(value, LARGE_CONSTANT)
    if array is not None:
        return np.asarray(array.min()) if array.dtype.kind == "f" and array.size else None
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in _MOVES:
        return _least(node.inputs[0], graph, memo)
    if node.op_type not in ("Where", "Add"):
        return None
    one, two = (_least(summand, graph, memo) for summand in node.inputs[-2:])
    if one is None or two is None:
        return None
    with np.errstate(over="ignore"):
        return np.asarray(one + two if node.op_type == "Add" else np.minimum(one, two))


def above_lowest(numbers: np.ndarray) -> np.ndarray:
    """Replace the lowest number by the next larger one, since the runtime treats the lowest as -inf."""
    least = lowest(numbers.dtype)
    return np.where(numbers == least, np.nextafter(least, numbers.dtype.type(0)), numbers)


def shrinking(dtype: ir.DataType) -> np.ndarray:
    """Return the largest number below one; multiplying by it makes every number but 0 and -inf smaller by one step."""
    one = np.ones((), dtype.numpy())
    return np.asarray(np.nextafter(one, np.zeros_like(one)))


def lowest(dtype: np.dtype[Any]) -> np.ndarray:
    """Return the lowest finite number of a type."""
    return np.array(np.finfo(dtype).min, dtype)
