"""Decide a rewrite in exact arithmetic: evaluate the nodes before and after it on random real numbers.

Equal results are equal for all values, up to a probability of about 2**-60 (see `exact.residues`), at the sizes tried.
Where numbers are compared, the results must be equal in several random orders and in the true order of the values; if
they are equal in the true order alone, the rewrite may still be wrong for values in another order.

A constant that the rewrite computes takes part with its exact value: the expression that defines it is evaluated on the
same constants as the nodes before the rewrite. How far the stored numbers are from it is known by itself
(`ir.precision.rounding_units`). A constant that replaces nodes which read constants alone is what a kernel computed for
these nodes; it must be within a few units in the last place of their exact value.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import threadpoolctl  # pyright: ignore[reportMissingTypeStubs]
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.exact import Invalid, Undecided
from sardonyx.ir.exact.call import FLOATS, Value, dtype_of
from sardonyx.ir.exact.evaluate import Evaluator
from sardonyx.ir.exact.moves import tensor
from sardonyx.ir.exact.reals import Numbers, Order, Real
from sardonyx.ir.ops import MOVES_DATA, READS_SHAPE
from sardonyx.ir.precision import FORMATS
from sardonyx.ir.shapes import Size
from sardonyx.verification.border_values import Generator, Style, Way
from sardonyx.verification.every_size import (
    AS_THEY_ARE,
    EverySize,
    FixedSizes,
    Sizes,
    at_every_size,
    has_many_elements,
    holds_sizes,
)
from sardonyx.verification.rewrite_models import Excerpt

_RANDOM_ORDERS = 4
_LARGE_RESULT_ELEMENTS = 1 << 12  # elements of results: as many places where an order that matters shows
_MOST_UNITS = 64.0  # in the last place of the largest number, between a kernel's result and its exact value
_CHOICE_SEEDS, _MOST_CHOICES = 100, 8  # seeds from which each condition of the border is true, or false, throughout
_TRUE_ORDERS = 4  # of numbers of each style, if the results depend on the order
MOVES = MOVES_DATA | READS_SHAPE | {"Concat", "Identity", "Where"}  # if there is nothing else, bits tell numbers apart
_MOST_ELEMENTS = 1 << 24  # of constants that are computed with: about 50 bytes each
_MOST_MOVED = 1 << 27  # of constants that are only moved
_MOST_RESULTS = 1 << 20  # elements of a value: some ten milliseconds for each operator


class Claim(Enum):
    """What exact arithmetic says about a rewrite."""

    ALL_VALUES = "equal for all values"
    ORDERS_TRIED = "equal for the orders tried"
    UNEQUAL = "unequal"
    UNDECIDED = "undecided"


EQUAL = (Claim.ALL_VALUES, Claim.ORDERS_TRIED)


class Decision(Struct, frozen=True):
    """A claim and its reason."""

    claim: Claim
    reason: str = ""
    every_size: bool = False  # equal for all values at every size, not only at those tried
    is_smaller: bool = False  # decided with smaller sizes in place of fixed ones that the nodes name
    computes: bool = False  # real numbers are computed, not only moved
    units: float = 0.0  # in the last place, by which constants that replace nodes differ from their exact values


class _Unequal(Exception):
    """The two sides differ."""


class _OtherShape(_Unequal):
    """The two sides differ in a shape, or one does not accept what the other does."""


def decide(excerpt: Excerpt) -> Decision:
    """Return what exact arithmetic says about a rewrite."""
    if excerpt.obstacle:
        return Decision(Claim.UNDECIDED, excerpt.obstacle)
    decision, readings = Decision(Claim.UNDECIDED), (False, True) if _has_literals(excerpt) else (False,)
    with _blas().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
        comparisons = [_Comparison(excerpt, reads_literals=reads_literals) for reads_literals in readings]
        for is_smaller, choice in _choices(excerpt, comparisons[0]):
            for comparison in comparisons:
                decision = _decision(comparison, choice)
                if decision.claim in EQUAL:
                    every_size = decision.claim is Claim.ALL_VALUES and comparison.every_size is not EverySize.UNKNOWN
                    return replace(decision, is_smaller=is_smaller, every_size=every_size)
            if decision.claim is Claim.UNEQUAL and AS_THEY_ARE in choice:
                break
    return decision


def _choices(excerpt: Excerpt, comparison: _Comparison) -> Iterator[tuple[bool, Sequence[Sizes]]]:
    """Yield sizes to compare at, and whether constants name them: smaller ones first if the values are large."""
    smaller_first = comparison.reads_values and has_many_elements(excerpt)
    if not smaller_first:
        yield False, [AS_THEY_ARE]
    fixed = FixedSizes.of(excerpt)
    smaller = fixed.choices(comparison.accepts)
    if smaller:
        yield fixed.names(smaller[0]), smaller
    if smaller_first:
        yield False, [AS_THEY_ARE]


def _has_literals(excerpt: Excerpt) -> bool:
    """Return whether one of the nodes has a number that stands for another real number."""
    numbers = Numbers(Order.TRUE, 0, reads_literals=True)
    for side in (excerpt.before, excerpt.exact):
        attributes = [each for node in side.proto.graph.node for each in node.attribute]
        stored = [each for each in side.constants.values() if each.size == 1 and each.dtype.value in FLOATS]
        scalars = [numbers.attribute(each.f, onnx.TensorProto.FLOAT) for each in attributes if each.type == each.FLOAT]
        scalars += [numbers.literal(np.asarray(each.numpy()), each.dtype.value) for each in stored]
        if any(Real.of(scalar.doubles, scalar.dtype).differs(scalar).any() for scalar in scalars):
            return True
    return False


def _decision(comparison: _Comparison, choice: Sequence[Sizes]) -> Decision:
    """Compare with other sizes in place of fixed ones; numbers may fit one choice of them by chance, but not two."""
    try:
        decision = comparison.decision(choice[0])
        for sizes in choice[1:]:
            comparison.compare_once(sizes)
    except Undecided as error:
        return Decision(Claim.UNDECIDED, str(error))
    except _Unequal as error:
        return Decision(Claim.UNEQUAL, str(error))
    return decision


@functools.cache
def _blas() -> Any:  # threadpoolctl has no types
    return cast(Any, threadpoolctl).ThreadpoolController()


class _Run(Struct, frozen=True, eq=False):
    """The results of the nodes before the rewrite on one choice of values."""

    way: Way
    values: Mapping[str, Value]
    numbers: Numbers
    results: list[Value]


class _Comparison:
    """Evaluates both sides of an excerpt on the same values."""

    def __init__(self, excerpt: Excerpt, *, reads_literals: bool) -> None:
        self._excerpt, self._reads_literals = excerpt, reads_literals
        sides = (excerpt.before, excerpt.exact)
        self._only_moves = {node.op_type for side in sides for node in side.proto.graph.node} <= MOVES
        most = _MOST_RESULTS if excerpt.border else _MOST_ELEMENTS  # constants alone are evaluated once
        numbers = self._numbers(Order.TRUE, 0)
        self._sides = [Evaluator(each.proto, numbers, most=most, unlimited=each.computed) for each in sides]
        self._folds = excerpt.folds if not excerpt.border else (False,) * excerpt.results
        self._elements = 0  # that were compared and are numbers
        self._units = 0.0
        self._fixed: Sizes | None = None  # the sizes that are chosen
        self._operators = set[str]()  # that read or wrote real numbers
        types = [entry.dtype for entry in excerpt.border if entry.contents is None]
        self._is_real = all(dtype is not None and dtype.is_floating_point() for dtype in types)
        nodes = [node for side in sides for node in side.proto.graph.node]
        bodies = any(attribute.HasField("g") for node in nodes for attribute in node.attribute)
        self._read = {name for node in nodes if node.op_type not in READS_SHAPE for name in node.input}
        self._read |= {entry.name for entry in excerpt.border if bodies or entry.dtype is None}
        # Otherwise the results depend on sizes alone, and one evaluation shows all there is.
        self.reads_values = bool(excerpt.free_weights) or any(
            entry.name in self._read and (entry.contents is None or None in entry.contents) for entry in excerpt.border
        )
        self._conditions = [
            entry.name for entry in excerpt.border if entry.dtype == ir.DataType.BOOL and not any(entry.contents or ())
        ]

    @functools.cached_property
    def every_size(self) -> EverySize:
        """What follows for other sizes, if the sides are equal at one."""
        return at_every_size(self._excerpt)

    def _numbers(self, order: Order, seed: int) -> Numbers:
        return Numbers(order, seed, reads_literals=self._reads_literals)

    def decision(self, fixed: Sizes) -> Decision:
        """Compare at several sizes."""
        self._choose(fixed)
        if (way := self._accepted()) is None:
            return Decision(Claim.UNDECIDED, "no values fit")
        claim = self._at(way, required=True)
        for sizes in self._sizes(way):
            other = self._at(replace(way, sizes=sizes), required=False)
            claim = other if other is Claim.ORDERS_TRIED else claim
        if not self._elements and self._excerpt.border:  # constants may be empty
            return Decision(Claim.UNDECIDED, "no element was compared")
        return Decision(claim, computes=not self._operators <= MOVES, units=self._units)

    def accepts(self, fixed: Sizes) -> bool:
        """Return whether the nodes before the rewrite accept these sizes, as far as is known."""
        try:
            self._choose(fixed)
            return self._accepted() is not None
        except Undecided:
            return True

    def compare_once(self, fixed: Sizes) -> None:
        """Compare on one choice of values."""
        self._choose(fixed)
        if (way := self._accepted()) is None:
            raise Undecided("no values fit")
        self._compared(way, Order.TRUE, 0)

    def _choose(self, fixed: Sizes) -> None:
        """Set sizes in place of fixed ones."""
        if fixed == self._fixed:
            return
        excerpt = self._excerpt
        constants = [*excerpt.before.constants.values(), *excerpt.exact.constants.values()]
        border = [
            replace(entry, shape=_replaced(entry.shape, fixed), contents=_replaced(entry.contents, fixed))
            for entry in excerpt.border
        ]
        self._generator = Generator(border, constants, excerpt.operators)
        self._constants = _constants(excerpt, self._numbers(Order.TRUE, 0), fixed, only_moves=self._only_moves)
        self._first: _Run | None = None
        self._fixed = fixed

    def _sizes(self, way: Way) -> Iterator[Mapping[str, int]]:
        """Yield sizes that tell more; what holds for every size needs few, and those that make tensors empty."""
        edges = self._generator.edge_sizes(way.sizes)
        others = itertools.islice(self._generator.other_sizes(way.sizes), 1)
        if self.every_size is EverySize.UNKNOWN:
            return itertools.chain(others, edges)
        empty = (sizes for sizes in edges if 0 in sizes.values())
        return empty if self.every_size is EverySize.SAME_TERMS else itertools.chain(others, empty)

    def _accepted(self) -> Way | None:
        """Return the first way of generating values that the nodes before the rewrite accept."""
        ways = self._generator.ways()
        return next((way for way in ways if self._before(way, Order.TRUE, 0, Style.NORMAL) is not None), None)

    def _before(self, way: Way, order: Order, seed: int, style: Style) -> _Run | None:
        """Evaluate the nodes before the rewrite; None if they do not accept the values."""
        if self._first is not None and (way, order, seed, style) == (self._first.way, Order.TRUE, 0, Style.NORMAL):
            return self._first
        values = self._values(way, seed, style)
        if values is None:
            return None
        numbers = self._numbers(order, seed)
        try:
            run = _Run(way, values, numbers, self._side(0, values, numbers)[: self._excerpt.results])
        except Invalid:
            return None
        self._first = self._first or run
        return run

    def _at(self, way: Way, *, required: bool) -> Claim:
        """Compare at one choice of sizes; what has many elements has many values, and needs fewer choices of them."""
        before = self._elements
        try:
            true = self._compared(way, Order.TRUE, 0)
        except Undecided:
            if required:
                raise
            true = None
        if true is None or not self.reads_values:
            return Claim.ALL_VALUES
        if any(entry.hides for entry in self._excerpt.border):
            self._compared(way, Order.TRUE, 1, Style.HIDING)
        if true.compared and required:  # random numbers are never equal to each other
            self._compared(way, Order.TRUE, 1, Style.TIED)
        varied = self._is_real
        if any(entry.contents is None and entry.dtype and entry.dtype.is_integer() for entry in self._excerpt.border):
            # integers at and near the constants of the nodes
            varied = self._compared(way, Order.TRUE, 1, Style.SPECIAL) is not None
        for choice in range(min(1 << len(self._conditions), _MOST_CHOICES)) if self._conditions and required else ():
            self._compared(way, Order.TRUE, _CHOICE_SEEDS + choice)
        is_large = self._elements - before >= _LARGE_RESULT_ELEMENTS
        count = _RANDOM_ORDERS if required and true.compared and not is_large else 1
        if not true.compared and (is_large or (varied and not required)):
            count = 0  # random numbers of 60 bits that are equal once are equal
        try:
            for seed in range(2, 2 + count):
                self._compared(way, Order.RANDOM, seed)
        except _Unequal:
            for style, seed in itertools.product((Style.NORMAL, Style.EXTREME), range(10, 10 + _TRUE_ORDERS)):
                self._compared(way, Order.TRUE, seed, style)
            try:
                for seed in range(_RANDOM_ORDERS):
                    self._compared(way, Order.SIGNS, seed)
            except _Unequal:
                return Claim.ORDERS_TRIED
        return Claim.ALL_VALUES

    def _compared(self, way: Way, order: Order, seed: int, style: Style = Style.NORMAL) -> Numbers | None:
        """Compare once; None if the nodes before the rewrite do not accept the values."""
        run = self._before(way, order, seed, style)
        if run is None:
            return None
        try:
            after = self._side(1, run.values, run.numbers)
        except Invalid as error:
            raise _OtherShape(f"the new nodes do not accept what the old ones do: {error}") from None
        self._operators |= run.numbers.operators
        for old, new, is_fold in zip(run.results, after, self._folds, strict=True):
            units = _units(old, new) if is_fold else None
            if units is None or units > _MOST_UNITS:
                self._elements += _compare(old, new)
            else:
                self._elements, self._units = self._elements + old.size, max(units, self._units)
        return run.numbers

    def _side(self, place: int, values: Mapping[str, Value], numbers: Numbers) -> list[Value]:
        """Return the results of the nodes before the rewrite, or of those after it."""
        self._sides[place].numbers = numbers
        try:
            return self._sides[place].run({**self._constants, **values})
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, MemoryError) as error:
            raise Invalid(f"{type(error).__name__}: {error}") from error

    def _values(self, way: Way, seed: int, style: Style = Style.NORMAL) -> dict[str, Value] | None:
        """Return values for the border: any real numbers, or floats at and near the constants of the nodes."""
        needs_floats = style in (Style.EXTREME, Style.HIDING, Style.TIED)
        feeds = self._generator.generate(way, style, seed, needs_floats=needs_floats)
        if feeds is None:
            return None
        rng = np.random.default_rng((seed, 1))
        hides = {entry.name for entry in self._excerpt.border if entry.hides}
        values: dict[str, Value] = {}
        for place, name in enumerate(self._conditions if seed >= _CHOICE_SEEDS else ()):
            feeds[name] = np.full_like(feeds[name], (seed - _CHOICE_SEEDS) >> place & 1)
        for name, array in feeds.items():
            dtype = self._generator.types(way)[name].value
            if dtype in FLOATS and self._only_moves:
                values[name] = _random_bits(rng, array.shape, _bits(array.dtype))
            elif dtype not in FLOATS:
                values[name] = tensor(self._numbers(Order.TRUE, 0), array, dtype)
            elif name not in self._read:  # only its shape
                values[name] = Real.of(np.zeros(()), dtype).moved(functools.partial(np.broadcast_to, shape=array.shape))
            elif style in (Style.EXTREME, Style.TIED) or (style is Style.HIDING and name in hides):
                values[name] = Real.of(array, dtype)
            else:
                values[name] = Real.drawn(rng, array.shape, dtype)
        return values


def _constants(excerpt: Excerpt, numbers: Numbers, fixed: Sizes, *, only_moves: bool) -> dict[str, Value]:
    """Return the constants of both sides, some with other sizes."""
    rng, free = np.random.default_rng(0), excerpt.free_weights
    stored = {**excerpt.before.constants, **excerpt.exact.constants}
    shapes = {name: tuple(each.shape.numpy()) for name, each in stored.items()}
    shapes |= {name: tuple(fixed.get(size, size) for size in shapes[name]) for name in free}
    if sum(map(math.prod, shapes.values())) > (_MOST_MOVED if only_moves else _MOST_ELEMENTS):
        raise Undecided("its weights are too large")
    values: dict[str, Value] = {}
    for name, each in stored.items():
        dtype = each.dtype.value
        if dtype in FLOATS and only_moves:
            bits = _bits(each.dtype.numpy())
            is_free = name in free
            values[name] = (
                _random_bits(rng, shapes[name], bits) if is_free else np.ascontiguousarray(each.numpy()).view(bits)
            )
        elif name in free:
            values[name] = drawn = Real.drawn(rng, shapes[name], dtype)
            if drawn.ndim == 1:  # some of them are variances, which have roots
                values[name] = Real(drawn.residues, np.abs(drawn.doubles), dtype)
        elif each.dtype == ir.DataType.STRING:
            raise Undecided("a constant of strings")
        else:
            array = np.asarray(each.numpy())
            if fixed and holds_sizes(each):
                array = np.array(_replaced(array.reshape(-1).tolist(), fixed), array.dtype).reshape(array.shape)
            values[name] = tensor(numbers, array, dtype)
    return values


def _replaced(sizes: Sequence[Size | None] | None, fixed: Sizes) -> tuple[Size | None, ...] | None:
    return None if sizes is None else tuple(fixed.get(size, size) for size in sizes)


def _random_bits(rng: np.random.Generator, shape: tuple[int, ...], bits: np.dtype[Any]) -> npt.NDArray[Any]:
    return rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, shape, bits)


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of integers with as many bits."""
    return np.dtype(f"i{dtype.itemsize}")


def _compare(old: Value, new: Value) -> int:
    """Return how many numbers are equal; raise if any is not. What is undefined before may be anything."""
    if old is None or new is None:
        if old is None and new is None:
            return 0
        raise _Unequal("a value of another kind")
    are_sequences = [isinstance(value, list) for value in (old, new)]
    if any(are_sequences):
        if not all(are_sequences) or len(old) != len(new):
            raise _Unequal("a sequence of another length")
        return sum(itertools.starmap(_compare, zip(old, new, strict=True)))
    if tuple(old.shape) != tuple(new.shape):
        raise _OtherShape(f"shape {list(new.shape)} instead of {list(old.shape)}")
    if dtype_of(old) != dtype_of(new):
        names = (onnx.TensorProto.DataType.Name(dtype_of(value)) for value in (new, old))
        raise _Unequal(" instead of ".join(names))
    undefined = np.isnan(old.doubles) if isinstance(old, Real) else np.zeros(old.shape, bool)
    wrong = (old.differs(new) if isinstance(old, Real) else np.asarray(old != new)) & ~undefined
    if wrong.any():
        raise _Unequal(f"{int(wrong.sum())} of {wrong.size} elements differ")
    return int((~undefined).sum())


def _units(old: Value, new: Value) -> float | None:
    """Return how far floats are from exact values, in units in the last place of the largest; None for other values."""
    if not isinstance(old, Real) or not isinstance(new, Real) or old.shape != new.shape or old.dtype != new.dtype:
        return None
    finite = np.isfinite(old.doubles)
    if (old.differs(new) & ~finite).any():
        return None
    values = old.doubles[finite]
    distance = np.max(np.abs(new.doubles[finite] - values), initial=0.0)
    unit = np.max(np.abs(values), initial=0.0) * 2 * FORMATS[ir.DataType(old.dtype)].roundoff
    return float(distance / unit) if unit else float(distance and np.inf)
