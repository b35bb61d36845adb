"""Values for the border of a rewrite: sizes for its dims, and numbers for its elements, the awkward ones among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.ir.shapes.expr import value_of
from sardonyx.runtime import Array
from sardonyx.verification.rewrite_models import Border, leaves

_MOST_ELEMENTS = 1 << 22  # of one value
_DISTINCT = (2, 3, 5, 7, 11, 13)
_EQUAL = (4, 2, 6, 12, 8, 16, 64, 1)
_RANKS = (3, 2, 4, 1, 0)  # tried where not even the rank is known
_TYPES = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT16)  # tried where none is known
_INTEGERS = ((-8, 9), (0, 2), (0, 1), (1, 2))  # ranges that are tried one after another
_SPECIAL_SHARE = 0.5
_DIVISIONS = frozenset(("Div", "Mod"))  # of integers by zero, the processor itself objects to

Sizes = Mapping[str, int]


class Style(Enum):
    """What kind of numbers are generated."""

    NORMAL = "normal"
    SPECIAL = "special"  # zeros, infinities, NaN, subnormal, lowest, largest, ties, all over
    EXTREME = "extreme"  # the same without NaN
    WIDE = "wide"  # zeros, subnormal and finite numbers of many magnitudes
    FLAT = "flat"  # rows whose elements are almost equal
    HIDING = "hiding"  # values added to attention scores hide places, and whole rows


@dataclass(frozen=True, slots=True)
class Way:
    """What is assumed of what is not known, so that the nodes before the rewrite accept it."""

    sizes: Sizes
    integers: tuple[int, int]
    dtype: ir.DataType
    rank: int


class Generator:
    """Generates values for one border."""

    def __init__(self, border: Sequence[Border], constants: Iterable[ir.TensorProtocol], operators: frozenset[str]):
        """`constants` and `operators` are those of the nodes: numbers near a constant are worth trying."""
        self._border = border
        self._named = _named_numbers(constants)
        self._divides = bool(operators & _DIVISIONS)
        known = [size for each in border for size in (*(each.shape or ()), *(each.contents or ()))]
        self.dims: tuple[str, ...] = tuple(dict.fromkeys(leaves(known)))
        self._static = sorted({size for size in known if isinstance(size, int) and 1 < size <= 256})

    def ways(self) -> Iterator[Way]:
        """Ways to try, the most telling first."""
        free = [each for each in self._border if each.contents is None or None in each.contents]
        integral = any(each.dtype is None or each.dtype.is_integer() for each in free)
        dtypes = _TYPES if any(each.dtype is None for each in self._border) else _TYPES[:1]
        ranks = _RANKS if any(each.shape is None for each in self._border) else _RANKS[:1]
        for dtype, rank, integers, sizes in itertools.product(
            dtypes, ranks, _INTEGERS if integral else _INTEGERS[:1], self._sizings()
        ):
            low, high = integers
            yield Way(sizes, (max(low, 1), max(high, 2)) if self._divides else integers, dtype, rank)

    def _sizings(self) -> list[Sizes]:
        if not self.dims:
            return [{}]
        primes = itertools.cycle(_DISTINCT)
        distinct = {dim: next(primes) for dim in self.dims}
        equal = [dict.fromkeys(self.dims, size) for size in (*_EQUAL, *self._static)]
        even = {dim: 4 * (index + 1) for index, dim in enumerate(self.dims)}
        return [distinct, *equal[:2], even, *equal[2:]]

    def other_sizes(self, sizes: Sizes) -> Iterator[Sizes]:
        """Larger ones, which what must divide them still divides."""
        if sizes:
            yield {dim: size + 1 + index % 2 for index, (dim, size) in enumerate(sizes.items())}
            yield {dim: 2 * size for dim, size in sizes.items()}
            yield {dim: 16 * size for dim, size in sizes.items()}  # longer than the registers of a processor

    def edge_sizes(self, sizes: Sizes, most: int) -> Iterator[Sizes]:
        """Everything of size 1, and each dim empty and 1 alone.

        Several empty dims at once are for trials of the whole model: what a Reshape makes of them, which reads a size
        of 0 as a dim to copy, is often nothing that the nodes below accept.
        """
        if len(sizes) > 1:
            yield dict.fromkeys(sizes, 1)
        for dim in list(sizes)[:most]:
            yield {**sizes, dim: 0}
            yield {**sizes, dim: 1}

    def types(self, way: Way) -> dict[str, ir.DataType]:
        """The element type of each value."""
        return {each.name: each.dtype or way.dtype for each in self._border}

    def generate(self, way: Way, style: Style, seed: int) -> dict[str, Array] | None:
        """Values for the whole border; None where no such sizes can be."""
        rng = np.random.default_rng(seed)
        values: dict[str, Array] = {}
        for each in self._border:
            try:
                shape = self._shape(each, way)
                if min(shape, default=0) < 0 or math.prod(shape) > _MOST_ELEMENTS:
                    return None
                values[each.name] = self._value(each, shape, way, style, rng)
            except (ZeroDivisionError, OverflowError):
                return None
        return values

    def _shape(self, each: Border, way: Way) -> tuple[int, ...]:
        if each.shape is None:
            return (2, 3, 4, 5)[: way.rank]
        return tuple(value_of(dim, way.sizes) for dim in each.shape)

    def _value(self, each: Border, shape: tuple[int, ...], way: Way, style: Style, rng: np.random.Generator) -> Array:
        dtype = each.dtype or way.dtype
        if dtype == ir.DataType.STRING:
            return np.asarray(rng.choice(np.array(["", "a", "B", "two words", "ß∂", "42"], object), shape), object)
        if dtype == ir.DataType.BOOL:
            return _flags(shape, rng)
        target = np.dtype(dtype.numpy())
        if dtype.is_floating_point():
            return self._floats(each, shape, target, style, rng)
        if target.kind == "c":
            return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(target)
        numbers = self._integers(shape, dtype, way, style, rng)
        if each.contents is not None and len(each.contents) == numbers.size:
            flat = numbers.reshape(-1)
            for index, item in enumerate(each.contents):
                if item is not None:
                    flat[index] = value_of(item, way.sizes)
        return numbers.astype(target)

    def _integers(
        self, shape: tuple[int, ...], dtype: ir.DataType, way: Way, style: Style, rng: np.random.Generator
    ) -> Array:
        low, high = way.integers
        if not dtype.is_signed():
            low, high = max(low, 0), max(high, 1)
        if style is Style.HIDING and low <= 0 < high:
            return _flags(shape, rng).astype(np.int64)
        numbers = np.asarray(rng.integers(low, high, shape))
        if style in (Style.SPECIAL, Style.EXTREME) and low < 0 and not self._divides:
            bits = dtype.bitwidth
            ends = [-(1 << bits - 1), (1 << bits - 1) - 1, 0, -1, *(int(n) for n in self._named if n == int(n))]
            numbers = _mixed(numbers, np.array(ends, np.int64), rng)
        return numbers

    def _floats(
        self, each: Border, shape: tuple[int, ...], target: np.dtype[Any], style: Style, rng: np.random.Generator
    ) -> Array:
        numbers = np.asarray(rng.standard_normal(shape))
        limits = cast(Any, ml_dtypes).finfo(target)  # knows numpy's own types too
        lowest, largest = float(limits.min), float(limits.max)
        tiny = float(limits.smallest_subnormal)
        named = [number for number in self._named if abs(number) <= largest]
        if style in (Style.SPECIAL, Style.EXTREME):
            awkward = [0.0, -0.0, np.inf, -np.inf, tiny, -tiny, lowest, largest, 0.5, -0.5, 1.5, 2.5, 1.0]
            more = [np.nan, *named] if style is Style.SPECIAL else named
            return _mixed(numbers, np.array([*awkward, *more]), rng).astype(target)
        if style is Style.WIDE:
            decades = min(math.log10(largest) / 4, 3.0)
            wide = numbers * 10.0 ** rng.uniform(-decades, decades / 2, shape)
            plain = [0.0, -0.0, 1.0, -1.0, tiny, 0.5, 1.5, 2.5, *(n for n in named if abs(n) < 1e3)]
            return _mixed(wide, np.array(plain), rng).astype(target)
        if style is Style.FLAT and shape:
            return (rng.standard_normal((*shape[:-1], 1)) + 1e-3 * numbers).astype(target)
        if style is Style.HIDING and each.hides and shape:
            return _hiding(shape, lowest, rng).astype(target)
        return numbers.astype(target)


def _mixed(numbers: Array, special: Array, rng: np.random.Generator) -> Array:
    """Special numbers in some places, each of them as often as any other."""
    turns = np.resize(rng.permutation(special), numbers.shape)
    places: Array = rng.random(tuple(numbers.shape))
    chosen = places < _SPECIAL_SHARE
    return np.where(chosen, turns, numbers)


def _flags(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random, but for rows that are all true and rows that are all false."""
    flags = np.asarray(rng.random(shape) < 0.6)
    if flags.size and shape:
        rows = flags.reshape(-1, shape[-1])
        start = int(rng.integers(3))
        rows[start::3], rows[(start + 1) % 3 :: 4] = False, True
    return flags


def _hiding(shape: tuple[int, ...], lowest: float, rng: np.random.Generator) -> Array:
    """Zeros and the numbers that hide, of one kind or several in a row; in every other kind of row nothing is left."""
    mild = max(lowest, -1e4)
    kinds = (
        (0.0, -np.inf), (lowest,), (0.0, lowest), (-np.inf, lowest),
        (0.0, mild), (mild, lowest), (0.0, -np.inf, lowest), (-np.inf,),
    )  # fmt: skip
    start = int(rng.integers(len(kinds)))
    rows = [
        rng.choice(np.array(kinds[row % len(kinds)]), shape[-1]) for row in range(start, start + math.prod(shape[:-1]))
    ]
    return np.reshape(np.array(rows), shape)


def _named_numbers(constants: Iterable[ir.TensorProtocol]) -> list[float]:
    """Numbers the nodes name (bounds, thresholds), their neighbours, and numbers well beyond."""
    found: set[float] = set()
    for tensor in constants:
        if tensor.size > 4 or tensor.dtype == ir.DataType.STRING or tensor.dtype.numpy().kind == "c":
            continue
        for number in np.asarray(tensor.numpy()).astype(np.float64).reshape(-1).tolist():
            if math.isfinite(number):
                step = 1.0 if tensor.dtype.is_integer() else abs(number) * float(np.finfo(np.float32).eps)
                found.update((number, number - step, number + step, 2 * number, number - 1, number + 1))
    return sorted(found)
