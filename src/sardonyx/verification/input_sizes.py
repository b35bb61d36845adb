"""Choose sizes for dynamic dimensions: equal for equal names, distinct for unrelated ones, and several per dimension.

The first rule reads what the graph requires (`size_requirements`) and searches for the smallest sizes that meet it. The
other rules are guesses for models whose requirements cannot be read.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from sardonyx.ir.scopes import declared_shape
from sardonyx.ir.shapes import Size, expr
from sardonyx.verification.size_requirements import Requirements

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
_SYMBOLIC: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: expr.add,
    ast.Sub: expr.subtract,
    ast.Mult: expr.multiply,
    ast.FloorDiv: expr.floor_quotient,
    ast.Mod: expr.remainder,
}
_BATCHES = (2, 1, 3, 4)
_LENGTHS = ((7, 3), (16, 1), (11, 2), (4, 1))  # the first size and the step to the next symbol's size, by round
_RANKS = (2, 3, 4, 1)  # tried in turn if the rank is not declared

_POWERS = tuple(8 << step for step in range(15))  # searched upward
_LAST_RESORTS = (16, 32, 512, 1024, 16000)  # the same for all lengths, if nothing else was accepted
_SWEEPS = 3  # rounds of adjusting every dimension in turn

Sizes = Mapping[str, int]
_NONE: Sizes = {}


class SizeRule(Protocol):
    """A rule that assigns sizes to the symbols; they differ between rounds, and some may be pinned."""

    def __call__(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        """Return the size of every symbol."""
        ...


class DynamicDims:
    """The symbols in the shapes of a model's inputs and the rules that assign sizes to them."""

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        self._shapes: dict[str, tuple[int | str, ...] | None] = {}
        self._requirements: Requirements | None = None
        self._solved: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, int]] = {}
        self.batch: list[str] = []
        self.others: list[str] = []
        for value in inputs:
            name, declared = value.name or "", declared_shape(value)
            if declared is None:
                self._shapes[name] = None
                continue
            # some exporters write -1 for "any size"
            shape = tuple(
                f"{name}[{axis}]" if dim is None or dim == "" or (isinstance(dim, int) and dim < 0) else dim
                for axis, dim in enumerate(declared)
            )
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
        """Whether an input does not declare its rank."""
        return any(shape is None for shape in self._shapes.values())

    def shape(self, name: str, sizes: Mapping[str, int], attempt: int = 0) -> tuple[int, ...]:
        """Return the shape of an input for these sizes; every attempt guesses another rank if none is declared."""
        declared = self._shapes[name]
        if declared is None:
            return (2, 3, 4, 5)[: _RANKS[attempt % len(_RANKS)]]
        return tuple(max(_evaluate(dim, sizes), 0) for dim in declared)

    def declared(self, name: str) -> tuple[int | str, ...] | None:
        """Return the dimensions of an input, each a size, a name or a formula; None if the rank is not declared."""
        return self._shapes[name]

    def sizes_in(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the size that every symbol has in inputs of these shapes; symbols inside formulas are left out."""
        declared = {name: self._shapes.get(name) or () for name in shapes}
        pairs = [pair for name, shape in shapes.items() for pair in zip(declared[name], shape, strict=False)]
        return {dim: size for dim, size in pairs if isinstance(dim, str) and dim in self.names}

    def meet(self, requirements: Requirements) -> None:
        """Let the first rule search for sizes that meet these requirements."""
        self._requirements = requirements
        self._solved.clear()

    def rules(self) -> Iterator[SizeRule]:
        """Yield the rules, the most informative first."""
        yield self._required
        if not self.names and not self.any_rank_unknown:
            return
        yield self._independent
        yield self._equal_lengths
        for total, first, second in itertools.islice(itertools.permutations(self.others, 3), 12):
            if first < second:
                yield _Summed(self, total, first, second)
        yield _Fixed(self, ((2, 64), (1, 96), (1, 128)))
        yield _Fixed(self, ((1, 224), (2, 256)))
        yield _Fixed(self, ((4, 4), (8, 8), (6, 6)))
        yield _Fixed(self, ((1, 1), (2, 2)))
        for length in _LAST_RESORTS:
            yield _Fixed(self, ((1, length), (2, length + length // 4)))

    def _required(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        """Return sizes that violate the fewest requirements of the graph."""
        if self._requirements is None:
            return self._independent(round_, pinned)
        key = (round_, tuple(sorted(pinned.items())))
        if key not in self._solved:
            sizes = self._search(round_, pinned, self._requirements)
            while len(pinned) > 1 and self._requirements.violated(sizes):  # the pinned sizes contradict each other
                pinned = dict(list(pinned.items())[:-1])
                sizes = self._search(round_, pinned, self._requirements)
            self._solved[key] = sizes
        return dict(self._solved[key])

    def _search(self, round_: int, pinned: Sizes, requirements: Requirements) -> dict[str, int]:
        """Take the best of the starts, then improve one dimension at a time until nothing is violated."""
        best, fewest = self._independent(round_, pinned), -1
        for start in self._starts(round_, pinned):
            count = requirements.violated(start)
            if count == 0:
                return start
            if fewest < 0 or count < fewest:
                best, fewest = start, count
        for _ in range(_SWEEPS):
            before = fewest
            for name in [name for name in self.names if name not in pinned]:
                for size in self._candidates(best, name, requirements):
                    tried = best | {name: size}
                    count = requirements.violated(tried)
                    if count < fewest:
                        best, fewest = tried, count
                    if fewest == 0:
                        return best
            if fewest == before:
                break
        return best

    def _starts(self, round_: int, pinned: Sizes) -> Iterator[dict[str, int]]:
        """Yield independent sizes first, then lengths that are all equal and grow."""
        yield self._independent(round_, pinned)
        yield self._equal_lengths(round_) | dict(pinned)
        batch = dict.fromkeys(self.batch, _BATCHES[round_ % len(_BATCHES)])
        for size in (size * (4 + round_ % 4) // 4 for size in _POWERS):
            yield batch | {name: size + i * (size // 4) for i, name in enumerate(self.others)} | dict(pinned)
            yield batch | dict.fromkeys(self.others, size) | dict(pinned)
        yield self._equal_lengths(round_, pinned)

    def _candidates(self, sizes: Sizes, name: str, requirements: Requirements) -> Iterable[int]:
        """Return sizes to try for one dimension: those of others, sums and differences, and constants of the graph."""
        others = [size for other, size in sizes.items() if other != name]
        pairs = [one + other for one, other in itertools.combinations(others, 2)]
        pairs += [abs(one - other) for one, other in itertools.combinations(others, 2)]
        named = [times * number for number in sorted(requirements.numbers) for times in (1, 2, 3) if number <= 1 << 16]
        return dict.fromkeys([*others, *pairs, *range(1, 18), *named, *_POWERS])

    def _independent(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        first, step = _LENGTHS[round_ % len(_LENGTHS)]
        sizes = {name: _BATCHES[round_ % len(_BATCHES)] + 2 * i for i, name in enumerate(self.batch)}
        return sizes | {name: first + step * i for i, name in enumerate(self.others)} | dict(pinned)

    def _equal_lengths(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        """Return one batch size and one length for all dimensions; a pinned size is used for all of its group."""
        batch = next((pinned[name] for name in self.batch if name in pinned), _BATCHES[round_ % len(_BATCHES)])
        lengths = (pinned[name] for name in self.others if name in pinned)
        length = next(lengths, _LENGTHS[round_ % len(_LENGTHS)][0])
        return dict.fromkeys(self.batch, batch) | dict.fromkeys(self.others, length) | dict(pinned)

    def summed(self, round_: int, pinned: Sizes, total: str, parts: tuple[str, str]) -> dict[str, int]:
        """Return independent sizes in which one dimension is the sum of two others."""
        sizes = self._independent(round_) | dict.fromkeys(self.batch, _BATCHES[round_ % len(_BATCHES)]) | dict(pinned)
        if total in pinned and not any(part in pinned for part in parts):
            return sizes
        return sizes | {total: sum(sizes[part] for part in parts)}


class _Summed:
    """One length is the sum of two others."""

    def __init__(self, dims: DynamicDims, total: str, first: str, second: str) -> None:
        self._dims, self._total, self._parts = dims, total, (first, second)

    def __call__(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        return self._dims.summed(round_, pinned, self._total, self._parts)


class _Fixed:
    """The same batch size and length for all dimensions, by round."""

    def __init__(self, dims: DynamicDims, rounds: Sequence[tuple[int, int]]) -> None:
        self._dims, self._rounds = dims, rounds

    def __call__(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        batch, length = self._rounds[round_ % len(self._rounds)]
        return dict.fromkeys(self._dims.batch, batch) | dict.fromkeys(self._dims.others, length) | dict(pinned)


def _parse(text: str) -> ast.expr | None:
    """Return the arithmetic expression in the name of a dimension, or None if it is a plain name."""
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


def symbolic(dim: int | str) -> Size:
    """Return a declared dimension as a symbolic size."""
    tree = None if isinstance(dim, int) else _parse(dim)
    return _symbolic(tree) if tree is not None else dim if isinstance(dim, int) else expr.symbol(dim)


def _symbolic(node: ast.expr) -> Size:
    if isinstance(node, ast.BinOp):
        return _SYMBOLIC[type(node.op)](_symbolic(node.left), _symbolic(node.right))
    if isinstance(node, ast.Name):
        return expr.symbol(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0


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
