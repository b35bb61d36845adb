"""Generate values for the inputs of an excerpt: sizes for its dimensions and numbers for its elements.

An excerpt is the small model around one rewrite (see `rewrite_models`); its inputs are called the border. The numbers
include those that expose a wrong rewrite: signed zeros, infinities, NaN, subnormals and neighbours of constants.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.inputs.sizes import with_formulas
from sardonyx.ir.shapes.expr import names_in, value_of
from sardonyx.runtime import Array
from sardonyx.verification.rewrite_models import Border

_MAX_ELEMENTS = 1 << 22  # of one value: some ten milliseconds to generate
_MAX_WAYS = 60  # that are tried; what accepts none of them has requirements that no guess meets
_MAX_EDGES = 4  # dimensions that are set to 0 and 1 alone
_DISTINCT_SIZES = (2, 3, 5, 7, 11, 13)
_EQUAL_SIZES = (4, 2, 6, 12, 8, 16, 64, 1)
_MAX_DOUBLINGS = 12  # of sizes at which a value would be empty: up to 50,000
_RANKS = (3, 2, 4, 1, 0)  # tried in turn if the rank is unknown
_TYPES = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT16)  # tried if the type is unknown
_INTEGERS = ((-8, 9), (0, 2), (0, 1), (1, 2))  # ranges tried in turn
_SPECIAL_SHARE = 0.5
_DIVISIONS = frozenset(("Div", "Mod"))  # dividing integers by zero kills the process

Sizes = Mapping[str, int]


class Style(Enum):
    """The kind of numbers to generate."""

    NORMAL = "normal"
    SPECIAL = "special"  # zeros, infinities, NaN, subnormal, lowest, largest and half-way numbers in many elements
    EXTREME = "extreme"  # the same without NaN
    WIDE = "wide"  # zeros, subnormal and finite numbers of many magnitudes
    TIED = "tied"  # few different numbers: small whole ones, those of the nodes and their neighbours
    FLAT = "flat"  # rows whose elements are almost equal
    HIDING = "hiding"  # values added to attention scores mask single positions and whole rows


class Way(Struct, frozen=True):
    """Assumptions about unknown properties of the border, chosen so that the nodes before the rewrite accept it."""

    sizes: Sizes
    integers: tuple[int, int]
    dtype: ir.DataType
    rank: int


class Generator:
    """Generates values for one border."""

    def __init__(self, border: Sequence[Border], constants: Iterable[ir.TensorProtocol], operators: frozenset[str]):
        """Generate values for `border`; some of them lie near the `constants` of the nodes."""
        self._border = border
        self._constants = tuple(constants)
        self._divides = bool(operators & _DIVISIONS)
        sizes = [size for entry in border for size in (*(entry.shape or ()), *(entry.contents or ()))]
        self.dims: tuple[str, ...] = tuple(dict.fromkeys(names_in(sizes)))
        self._static = sorted({size for size in sizes if isinstance(size, int) and 1 < size <= 256})

    @functools.cached_property
    def _near_constants(self) -> list[float]:
        return _numbers_near(self._constants)

    def ways(self) -> Iterator[Way]:
        """Yield the ways to try, the most informative first."""
        return itertools.islice(self._all_ways(), _MAX_WAYS)

    def _all_ways(self) -> Iterator[Way]:
        free = [entry for entry in self._border if entry.contents is None or None in entry.contents]
        integral = any(entry.dtype is None or entry.dtype.is_integer() for entry in free)
        dtypes = _TYPES if any(entry.dtype is None for entry in self._border) else _TYPES[:1]
        ranks = _RANKS if any(entry.shape is None for entry in self._border) else _RANKS[:1]
        sizings = self._sizings()
        for dtype, rank, integers in itertools.product(dtypes, ranks, _INTEGERS if integral else _INTEGERS[:1]):
            low, high = integers
            some, sizings = itertools.tee(sizings)  # the first is mostly accepted
            for sizes in some:
                yield Way(sizes, (max(low, 1), max(high, 2)) if self._divides else integers, dtype, rank)

    def _sizings(self) -> Iterator[Sizes]:
        if not self.dims:
            yield {}
            return
        primes = itertools.cycle(_DISTINCT_SIZES)
        distinct = {dim: next(primes) for dim in self.dims}
        equal = [dict.fromkeys(self.dims, size) for size in (*_EQUAL_SIZES, *self._static)]
        even = {dim: 4 * (index + 1) for index, dim in enumerate(self.dims)}
        sizings, fitting = list[Sizes](), list[Sizes]()
        for sizes in (distinct, *equal[:2], even, *equal[2:]):
            sizings.append(self._without_empty(sizes))
            fitting.append(with_formulas(sizings[-1]))
            yield fitting[-1]
        yield from (sizes for sizes in sizings if sizes not in fitting)

    def _without_empty(self, sizes: Sizes) -> Sizes:
        """Double sizes until no value is empty: a sound of 100 samples has no window of 128."""
        dims = [dim for entry in self._border for dim in entry.shape or () if not isinstance(dim, int)]
        for _ in range(_MAX_DOUBLINGS):
            try:
                names = set(names_in([dim for dim in dims if value_of(dim, sizes) <= 0]))
            except (ZeroDivisionError, OverflowError):
                break
            sizes = {dim: size * 2 if dim in names else size for dim, size in sizes.items()}
        return sizes

    def other_sizes(self, sizes: Sizes) -> Iterator[Sizes]:
        """Yield larger sizes; the doubled ones keep every divisor of the given sizes."""
        if sizes:
            fit = with_formulas if sizes == with_formulas(sizes) else dict[str, int]
            yield fit({dim: size + 1 + index % 2 for index, (dim, size) in enumerate(sizes.items())})
            yield fit({dim: 2 * size for dim, size in sizes.items()})
            yield fit({dim: 16 * size for dim, size in sizes.items()})  # longer than the registers of a processor

    def edge_sizes(self, sizes: Sizes) -> Iterator[Sizes]:
        """Yield all dimensions at 1, and each of the first dimensions alone at 0 and at 1.

        Several empty dimensions at once are left to the trials of the whole model: a Reshape reads a size of 0 as
        "copy this dimension", and the nodes after it often reject the result. If a dimension is named like the sum of
        others, sizes follow that name except once: no runtime holds anybody to it.
        """
        fit = with_formulas if sizes == with_formulas(sizes) else dict[str, int]
        if len(sizes) > 1:
            yield fit(dict.fromkeys(sizes, 1))
        if (others := {dim: size + 1 for dim, size in sizes.items()}) != fit(others):
            yield others
        for dim in list(sizes)[:_MAX_EDGES]:
            yield fit({**sizes, dim: 0})
            yield fit({**sizes, dim: 1})

    def types(self, way: Way) -> dict[str, ir.DataType]:
        """Return the element type of each value."""
        return {entry.name: entry.dtype or way.dtype for entry in self._border}

    def generate(self, way: Way, style: Style, seed: int, *, needs_floats: bool = True) -> dict[str, Array] | None:
        """Return values for the whole border, or None if the sizes lead to an impossible or too large shape.

        Floats are zeros if they are not needed.
        """
        rng = np.random.default_rng(seed)
        values: dict[str, Array] = {}
        for entry in self._border:
            try:
                shape = self._shape(entry, way)
                if min(shape, default=0) < 0 or math.prod(shape) > _MAX_ELEMENTS:
                    return None
                dtype = entry.dtype or way.dtype
                if dtype.is_floating_point() and not needs_floats:
                    values[entry.name] = np.broadcast_to(np.zeros((), dtype.numpy()), shape)
                else:
                    values[entry.name] = self._value(entry, shape, way, style, rng)
            except (ZeroDivisionError, OverflowError):
                return None
        return values

    def _shape(self, entry: Border, way: Way) -> tuple[int, ...]:
        if entry.shape is None:
            return (2, 3, 4, 5)[: way.rank]
        return tuple(value_of(dim, way.sizes) for dim in entry.shape)

    def _value(self, entry: Border, shape: tuple[int, ...], way: Way, style: Style, rng: np.random.Generator) -> Array:
        dtype = entry.dtype or way.dtype
        if dtype == ir.DataType.STRING:
            return np.asarray(rng.choice(np.array(["", "a", "B", "two words", "ß∂", "42"], object), shape), object)
        if dtype == ir.DataType.BOOL:
            return _flags(shape, rng)
        target = np.dtype(dtype.numpy())
        if dtype.is_floating_point():
            return self._floats(entry, shape, target, style, rng)
        if target.kind == "c":
            return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(target)
        numbers = self._integers(shape, dtype, way, style, rng)
        if entry.contents is not None and len(entry.contents) == numbers.size:
            flat = numbers.reshape(-1)
            for index, item in enumerate(entry.contents):
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
            ends = [
                -(1 << bits - 1),
                (1 << bits - 1) - 1,
                0,
                -1,
                *(int(n) for n in self._near_constants if n.is_integer() and abs(n) < 2.0**62),
            ]
            numbers = _mixed(numbers, np.array(ends, np.int64), rng)
        return numbers

    def _floats(
        self, entry: Border, shape: tuple[int, ...], target: np.dtype[Any], style: Style, rng: np.random.Generator
    ) -> Array:
        numbers = np.asarray(rng.standard_normal(shape))
        limits = cast(Any, ml_dtypes).finfo(target)  # knows numpy's own types too
        lowest, largest = float(limits.min), float(limits.max)
        tiny = float(limits.smallest_subnormal)
        near = [number for number in self._near_constants if abs(number) <= largest]
        if style in (Style.SPECIAL, Style.EXTREME):
            awkward = [0.0, -0.0, np.inf, -np.inf, tiny, -tiny, lowest, largest, 0.5, -0.5, 1.5, 2.5, 1.0]
            more = [np.nan, *near] if style is Style.SPECIAL else near
            return _mixed(numbers, np.array([*awkward, *more]), rng).astype(target)
        if style is Style.WIDE:
            decades = min(math.log10(largest) / 4, 3.0)
            wide = numbers * 10.0 ** rng.uniform(-decades, decades / 2, shape)
            plain = [0.0, -0.0, 1.0, -1.0, tiny, 0.5, 1.5, 2.5, *(n for n in near if abs(n) < 1e3)]
            return _mixed(wide, np.array(plain), rng).astype(target)
        if style is Style.TIED:
            return _mixed(np.round(numbers), np.array([0.0, *near]), rng).astype(target)
        if style is Style.FLAT and shape:
            return (rng.standard_normal((*shape[:-1], 1)) + 1e-3 * numbers).astype(target)
        if style is Style.HIDING and entry.hides and shape:
            return _hiding(shape, lowest, rng).astype(target)
        return numbers.astype(target)


def _mixed(numbers: Array, special: Array, rng: np.random.Generator) -> Array:
    """Replace about half of the numbers by special ones, each special number equally often."""
    turns = np.resize(rng.permutation(special), numbers.shape)
    places: Array = rng.random(tuple(numbers.shape))
    chosen = places < _SPECIAL_SHARE
    return np.where(chosen, turns, numbers)


def _flags(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return random flags in which some rows are all true and some all false."""
    flags = np.asarray(rng.random(shape) < 0.6)
    if flags.size and shape:
        rows = flags.reshape(-1, shape[-1])
        start = int(rng.integers(3))
        rows[start::3], rows[(start + 1) % 3 :: 4] = False, True
    return flags


def _hiding(shape: tuple[int, ...], lowest: float, rng: np.random.Generator) -> Array:
    """Return additive mask values: rows that mix 0 with masking numbers, and rows that mask every position."""
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


def _numbers_near(constants: Iterable[ir.TensorProtocol]) -> list[float]:
    """Return the small constants of the nodes (bounds, thresholds), their neighbours and numbers well beyond them."""
    numbers: set[float] = set()
    for tensor in constants:
        if tensor.size > 4 or tensor.dtype == ir.DataType.STRING or tensor.dtype.numpy().kind == "c":
            continue
        for number in np.asarray(tensor.numpy()).astype(np.float64).reshape(-1).tolist():
            if math.isfinite(number):
                step = 1.0 if tensor.dtype.is_integer() else abs(number) * float(np.finfo(np.float32).eps)
                numbers.update((number, number - step, number + step, 2 * number, number - 1, number + 1))
    return sorted(numbers)
