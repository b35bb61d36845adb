"""What a mask may hold: the numbers of constants, however moved and chosen from, and how far they hide a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MOVES_DATA

LARGE_CONSTANT = 1 << 24  # bytes of a constant mask that is looked at
_BIAS = 64.0  # what is no larger ranks keys and hides none
_COARSE = (2.0**14, 1e9)  # between them a unit in the last place is neither small nor more than the scores
_MOST_NODES = 64  # that are looked at for the least number of a mask
_MOVES = MOVES_DATA - {"Split"}  # of one result


@dataclass(frozen=True, eq=False)
class Choice:
    """A Where between constants and the moves that follow it."""

    nodes: tuple[ir.Node, ...]
    branches: tuple[np.ndarray, np.ndarray]

    def write(self, op: Builder) -> ir.Value:
        """The same without the lowest number."""
        where, *moves = self.nodes
        value = op.Where(where.inputs[0], *(op.constant(above_lowest(branch), "mask") for branch in self.branches))
        for move in moves:
            value = op.like(move, (value, *move.inputs[1:]))
        return value


@dataclass(frozen=True, eq=False)
class MaskValues:
    """What is known of the numbers in a mask; None for any."""

    numbers: np.ndarray | None = None
    factor: float = 0.0  # of a product with a constant, which all numbers in it are multiples of
    choice: Choice | None = None
    shows_in_every_row: bool = False  # a constant that leaves a key in every row

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing."""
        return self.numbers is not None and not self.numbers.any()

    def may_hold(self, number: np.ndarray) -> bool:
        """Whether the number may be in it."""
        return self.numbers is None or bool((self.numbers == number).any())

    @property
    def is_bias(self) -> bool:
        """Whether it certainly hides nothing."""
        return self.numbers is not None and bool((np.abs(self.numbers) <= _BIAS).all())

    @property
    def hides_by_infinity(self) -> bool:
        """Whether it certainly hides by -inf alone."""
        return self.numbers is not None and bool(((np.abs(self.numbers) <= _BIAS) | (self.numbers == -np.inf)).all())

    @property
    def is_coarse(self) -> bool:
        """Whether it is known to hold a number by which scores are rounded and yet not made equal."""
        known = np.array([self.factor]) if self.numbers is None else self.numbers
        magnitude = np.abs(known.astype(np.float64))
        return bool(((magnitude > _COARSE[0]) & (magnitude < _COARSE[1])).any())


def values_of(value: ir.Value, graph: Facts) -> MaskValues:
    """What is known of a mask."""
    moves: list[ir.Node] = []
    while graph.array(value, LARGE_CONSTANT) is None:
        made = value.producer()
        if made is None or made.domain:
            return MaskValues()
        source = made.inputs[0] if made.op_type in _MOVES else None
        if source is None:
            return _computed(made, tuple(moves), graph)
        moves.insert(0, made)
        value = source
    array = graph.array(value, LARGE_CONSTANT)
    assert array is not None
    if array.dtype.kind != "f":
        return MaskValues()
    shows = not moves and array.ndim > 0 and bool(array.size) and bool((array.max(axis=-1) >= -_BIAS).all())
    return MaskValues(array.reshape(-1), shows_in_every_row=shows)


def _computed(made: ir.Node, moves: tuple[ir.Node, ...], graph: Facts) -> MaskValues:
    """Of a choice between constants, or of a product with one."""
    if made.op_type == "Mul":
        factors = [graph.scalar(value) for value in made.inputs]
        return MaskValues(factor=next((float(factor) for factor in factors if factor is not None), 0.0))
    branches = [graph.array(value) for value in made.inputs[1:]] if made.op_type == "Where" else []
    if len(branches) != 2 or branches[0] is None or branches[1] is None or branches[0].dtype.kind != "f":
        return MaskValues()
    one, two = branches[0], branches[1]
    numbers = np.concatenate([one.reshape(-1), two.reshape(-1)])
    return MaskValues(numbers, choice=Choice((made, *moves), (one, two)))


def leaves_every_row(mask: ir.Value, graph: Facts, *, causal: bool) -> bool:
    """Whether every row of a mask certainly holds more than the lowest number, before the diagonal's end if causal.

    Only there does every kernel make the same of it: others answer 0, NaN or the mean.
    """
    array = graph.array(mask, LARGE_CONSTANT)
    if array is not None and array.ndim > 1 and array.size:
        seen = np.where(np.tri(*array.shape[-2:], dtype=bool), array, -np.inf) if causal else array
        return bool((seen.max(axis=-1) > lowest(array.dtype)).all())
    least = _least(mask, graph, {})
    return least is not None and bool(least > lowest(least.dtype))


def _least(value: ir.Value | None, graph: Facts, known: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    """A number that no element of a mask is below; None where that is not known."""
    if value is None or len(known) >= _MOST_NODES:
        return None
    if value not in known:
        known[value] = None
        known[value] = _least_of(value, graph, known)
    return known[value]


def _least_of(value: ir.Value, graph: Facts, known: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    array = graph.array(value, LARGE_CONSTANT)
    if array is not None:
        return np.asarray(array.min()) if array.dtype.kind == "f" and array.size else None
    made = value.producer()
    if made is None or made.domain:
        return None
    if made.op_type in _MOVES:
        return _least(made.inputs[0], graph, known)
    if made.op_type not in ("Where", "Add"):
        return None
    one, two = (_least(operand, graph, known) for operand in made.inputs[-2:])
    if one is None or two is None:
        return None
    with np.errstate(over="ignore"):
        return np.asarray(one + two if made.op_type == "Add" else np.minimum(one, two))


def above_lowest(numbers: np.ndarray) -> np.ndarray:
    """The same, with the next larger number for the lowest one, which the runtime's kernel takes for -inf."""
    least = lowest(numbers.dtype)
    return np.where(numbers == least, np.nextafter(least, numbers.dtype.type(0)), numbers)


def shrinking(dtype: ir.DataType) -> np.ndarray:
    """The largest number below one. Times it, each number is the next smaller in magnitude; 0 and -inf stay."""
    one = np.ones((), dtype.numpy())
    return np.asarray(np.nextafter(one, np.zeros_like(one)))


def lowest(dtype: np.dtype[Any]) -> np.ndarray:
    """The lowest finite number of a type."""
    return np.array(np.finfo(dtype).min, dtype)
