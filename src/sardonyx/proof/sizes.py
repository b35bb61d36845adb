"""Sizes for dynamic dims: consistent by name, distinct where nothing ties them, and never one size only."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx.proof.interface import dims

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
_BATCHES = (2, 1, 3, 4)
_LENGTHS = ((7, 3), (16, 1), (11, 2), (4, 1))  # first size, and the step to the next symbol's, by round
_RANKS = (2, 3, 4, 1)  # tried where not even the rank is declared

Rule = Callable[[int], dict[str, int]]


class DynamicDims:
    """The symbols in the shapes of a model's inputs and the ways to give them sizes."""

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        self._shapes: dict[str, tuple[int | str, ...] | None] = {}
        self.batch: list[str] = []
        self.others: list[str] = []
        for value in inputs:
            name, known = value.name or "", dims(value)
            if known is None:
                self._shapes[name] = None
                continue
            shape = tuple(f"{name}[{axis}]" if d is None or d == "" else d for axis, d in enumerate(known))
            self._shapes[name] = shape
            for axis, dim in enumerate(shape):
                for symbol in _symbols(dim):
                    group = self.batch if axis == 0 and len(shape) > 1 else self.others
                    if symbol not in self.batch and symbol not in self.others:
                        group.append(symbol)

    @property
    def names(self) -> list[str]:
        """Every symbol, batch-like ones first."""
        return self.batch + self.others

    @property
    def any_rank_unknown(self) -> bool:
        """Whether an input does not even declare its rank."""
        return any(shape is None for shape in self._shapes.values())

    def shape(self, name: str, sizes: Mapping[str, int], attempt: int = 0) -> tuple[int, ...]:
        """The shape of an input under given sizes; an undeclared rank is guessed anew at every attempt."""
        declared = self._shapes[name]
        if declared is None:
            return (2, 3, 4, 5)[: _RANKS[attempt % len(_RANKS)]]
        return tuple(max(_evaluate(dim, sizes), 0) for dim in declared)

    def rules(self) -> Iterator[Rule]:
        """Ways to size the symbols, the most telling first: each maps a round to sizes that differ between rounds."""
        yield self._independent
        if not self.names and not self.any_rank_unknown:
            return
        yield self._equal_lengths
        for total, first, second in itertools.islice(itertools.permutations(self.others, 3), 12):
            if first < second:
                yield lambda r, t=total, a=first, b=second: self._summed(r, t, a, b)
        yield lambda r: self._fixed((64, 96, 128)[r % 3])
        yield lambda r: self._fixed((224, 256)[r % 2])
        yield lambda r: dict.fromkeys(self.names, (4, 8, 6)[r % 3])
        yield lambda r: dict.fromkeys(self.names, (1, 2)[r % 2])

    def empty(self) -> dict[str, int] | None:
        """Sizes with nothing in the batch, or None where no dim allows it."""
        sizes = self._independent(0)
        hollow = self.batch or self.others
        return sizes | dict.fromkeys(hollow, 0) if hollow else None

    def _independent(self, round_: int) -> dict[str, int]:
        first, step = _LENGTHS[round_ % len(_LENGTHS)]
        sizes = {name: _BATCHES[round_ % len(_BATCHES)] + 2 * i for i, name in enumerate(self.batch)}
        return sizes | {name: first + step * i for i, name in enumerate(self.others)}

    def _equal_lengths(self, round_: int) -> dict[str, int]:
        batch = dict.fromkeys(self.batch, _BATCHES[round_ % len(_BATCHES)])
        return batch | dict.fromkeys(self.others, _LENGTHS[round_ % len(_LENGTHS)][0])

    def _summed(self, round_: int, total: str, first: str, second: str) -> dict[str, int]:
        sizes = self._independent(round_) | dict.fromkeys(self.batch, _BATCHES[round_ % len(_BATCHES)])
        return sizes | {total: sizes[first] + sizes[second]}

    def _fixed(self, length: int) -> dict[str, int]:
        return dict.fromkeys(self.batch, 1 + length // 64 % 2) | dict.fromkeys(self.others, length)


def _parse(text: str) -> ast.expr | None:
    """The expression a dim's name spells, or None where it is just a name."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.BinOp) and _is_arithmetic(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and isinstance(node.value, int))


def _symbols(dim: int | str) -> list[str]:
    if isinstance(dim, int):
        return []
    tree = _parse(dim)
    if tree is None:
        return [dim]
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _evaluate(dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    tree = _parse(dim)
    return sizes[dim] if tree is None else _compute(tree, sizes)


def _compute(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        right = _compute(node.right, sizes)
        if right == 0 and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            return 0
        return _OPERATORS[type(node.op)](_compute(node.left, sizes), right)
    if isinstance(node, ast.Name):
        return sizes[node.id]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0
