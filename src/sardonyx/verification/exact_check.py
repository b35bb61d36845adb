"""Decide a rewrite in exact arithmetic: evaluate the nodes before and after it on random real numbers.

Equal results are equal for all values, up to a probability of about 2**-60 (see `exact.residues`), at the sizes tried.
Where numbers are compared, the results must be equal in several random orders and in the true order of the values; if
they are equal in the true order alone, the rewrite may still be wrong for values in another order.

Constants that only one side has were computed by the rewrite and are rounded, so that most rewrites with such constants
are not equal; the caller then compares floating-point results.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import threadpoolctl  # pyright: ignore[reportMissingTypeStubs]
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.exact import Invalid, Undecided
from sardonyx.exact.call import FLOATS, SEQUENCE, Value, dtype_of, kind
from sardonyx.exact.evaluate import Evaluator
from sardonyx.exact.moves import tensor
from sardonyx.exact.reals import Numbers, Order, Real
from sardonyx.ir.ops import MOVES_DATA, READS_SHAPE
from sardonyx.ir.shapes import Size
from sardonyx.verification.border_values import Generator, Style, Way
from sardonyx.verification.rewrite_models import Border, Excerpt, SmallModel

_MOST_WAYS = 60  # ways of generating a border that are tried
_MOST_EDGES = 4  # dimensions that are set to 0 and 1 alone
_RANDOM_ORDERS = 4
_ROUNDING = 1e-5  # relative distance that the rounding of a computed constant may amount to
_TRUE_ORDERS = 4  # of numbers of each style, if the results depend on the order
_MOST_BYTES = 1 << 29  # of constants
MOVES = MOVES_DATA | READS_SHAPE | {"Concat", "Identity", "Where"}  # if there is nothing else, bits tell numbers apart
_MOST_ELEMENTS = 1 << 22  # of constants that are computed with: about 50 bytes each
_MOST_RESULTS = 1 << 18  # elements of a value: a few milliseconds for each operator
_MOST_COMPUTED = 1 << 20  # elements of constants that only one side has
_LEAST = 8  # to which a fixed size is reduced
_MOST_SIZES = 64  # elements of a constant that may hold sizes
_ANY = 64  # elements from which a constant on both sides stands for any other


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
    is_close: bool = False  # the doubles of unequal sides differ by rounding only


class _Unequal(Exception):
    """The two sides differ."""


class _Close(_Unequal):
    """The doubles of the two sides differ by rounding only."""


class _OtherShape(_Unequal):
    """The two sides differ in a shape, or one does not accept what the other does."""


def decide(excerpt: Excerpt) -> Decision:
    """Return what exact arithmetic says about a rewrite."""
    if excerpt.is_random:
        return Decision(Claim.UNDECIDED, "its results are random")
    if excerpt.has_parameters:
        return Decision(Claim.UNDECIDED, "an attribute is a parameter of the function")
    if excerpt.before.nbytes + excerpt.after.nbytes > _MOST_BYTES:
        return Decision(Claim.UNDECIDED, "its weights are too large")
    constants = {**excerpt.before.constants, **excerpt.after.constants}.values()
    large = sum(each.size for each in constants) > _MOST_ELEMENTS or excerpt.computed_elements > _MOST_COMPUTED
    if large and not excerpt.operators <= MOVES:
        return Decision(Claim.UNDECIDED, "its weights are too large")
    with _blas().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
        decision = _decision(excerpt, reads_literals=False)
        again = decision.claim is Claim.UNEQUAL and _has_literals(excerpt)
        return _decision(excerpt, reads_literals=True) if again else decision


def _has_literals(excerpt: Excerpt) -> bool:
    """Return whether one of the nodes has a number that stands for another real number."""
    numbers = Numbers(Order.TRUE, 0, reads_literals=True)
    for side in (excerpt.before, excerpt.after):
        attributes = [each for node in side.proto.graph.node for each in node.attribute]
        stored = [each for each in side.constants.values() if each.size == 1 and each.dtype.value in FLOATS]
        scalars = [numbers.attribute(each.f, onnx.TensorProto.FLOAT) for each in attributes if each.type == each.FLOAT]
        scalars += [numbers.literal(np.asarray(each.numpy()), each.dtype.value) for each in stored]
        if any(Real.of(scalar.doubles, scalar.dtype).differs(scalar).any() for scalar in scalars):
            return True
    return False


def _decision(excerpt: Excerpt, *, reads_literals: bool) -> Decision:
    try:
        return _Comparison(excerpt, reads_literals=reads_literals).decision()
    except Undecided as error:
        return Decision(Claim.UNDECIDED, str(error))
    except _Unequal as error:
        return Decision(Claim.UNEQUAL, str(error), isinstance(error, _Close))


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
        self._generator = _generator(excerpt, excerpt.border)
        self._constants = _constants(excerpt, self._numbers(Order.TRUE, 0))
        self._only_moves = excerpt.operators <= MOVES
        self._first: _Run | None = None
        self._elements = 0  # that were compared and are numbers

    def _numbers(self, order: Order, seed: int) -> Numbers:
        return Numbers(order, seed, reads_literals=self._reads_literals)

    def decision(self) -> Decision:
        """Compare at smaller fixed sizes if there are some, and with those of the model if a side relies on them."""
        smaller = _smaller(self._excerpt)
        if smaller is not None:
            self._generator = _generator(self._excerpt, smaller)
            try:
                decision = self._at_all_sizes()
            except _OtherShape:
                decision = Decision(Claim.UNEQUAL)
            if decision.claim in EQUAL:
                return decision
            self._generator, self._first = _generator(self._excerpt, self._excerpt.border), None
        return self._at_all_sizes()

    def _at_all_sizes(self) -> Decision:
        way = self._accepted()
        if way is None:
            return Decision(Claim.UNDECIDED, "no values fit")
        claim = self._at(way, required=True)
        for sizes in self._sizes(way):
            other = self._at(replace(way, sizes=sizes), required=False)
            claim = other if other is Claim.ORDERS_TRIED else claim
        if not self._elements:
            return Decision(Claim.UNDECIDED, "no element was compared")
        return Decision(claim)

    def _sizes(self, way: Way) -> Iterator[Mapping[str, int]]:
        yield from itertools.islice(self._generator.other_sizes(way.sizes), 1)
        yield from self._generator.edge_sizes(way.sizes, _MOST_EDGES)

    def _accepted(self) -> Way | None:
        """Return the first way of generating values that the nodes before the rewrite accept."""
        ways = itertools.islice(self._generator.ways(), _MOST_WAYS)
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
            results = self._side(self._excerpt.before, values, numbers)[: self._excerpt.results]
        except Invalid:
            return None
        run = _Run(way, values, numbers, results)
        self._first = self._first or run
        return run

    def _at(self, way: Way, *, required: bool) -> Claim:
        """Compare at one choice of sizes."""
        try:
            true = self._compared(way, Order.TRUE, 0)
        except Undecided:
            if required:
                raise
            true = None
        if true is None:
            return Claim.ALL_VALUES
        if any(entry.hides for entry in self._excerpt.border):
            self._compared(way, Order.TRUE, 1, Style.HIDING)
        if any(entry.contents is None and entry.dtype and entry.dtype.is_integer() for entry in self._excerpt.border):
            self._compared(way, Order.TRUE, 1, Style.SPECIAL)  # integers at and near the constants of the nodes
        count = _RANDOM_ORDERS if required and true.compared else 1
        try:
            for seed in range(2, 2 + count):
                self._compared(way, Order.RANDOM, seed)
        except _Unequal:
            for style, seed in itertools.product((Style.NORMAL, Style.EXTREME), range(10, 10 + _TRUE_ORDERS)):
                self._compared(way, Order.TRUE, seed, style)
            return Claim.ORDERS_TRIED
        return Claim.ALL_VALUES

    def _compared(self, way: Way, order: Order, seed: int, style: Style = Style.NORMAL) -> Numbers | None:
        """Compare once; None if the nodes before the rewrite do not accept the values."""
        run = self._before(way, order, seed, style)
        if run is None:
            return None
        try:
            after = self._side(self._excerpt.after, run.values, run.numbers)
        except Invalid as error:
            raise _OtherShape(f"the new nodes do not accept what the old ones do: {error}") from None
        for old, new in zip(run.results, after, strict=True):
            self._elements += _compare(old, new)
        return run.numbers

    def _side(self, side: SmallModel, values: Mapping[str, Value], numbers: Numbers) -> list[Value]:
        inputs = {info.name for info in side.proto.graph.input}
        feeds = {name: value for name, value in values.items() if name in inputs}
        constants = {name: self._constants[name] for name in side.constants}
        try:
            return Evaluator(side.proto, numbers, most=_MOST_RESULTS).run({**constants, **feeds})
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, MemoryError) as error:
            raise Invalid(f"{type(error).__name__}: {error}") from error

    def _values(self, way: Way, seed: int, style: Style = Style.NORMAL) -> dict[str, Value] | None:
        """Return values for the border: any real numbers, or floats at and near the constants of the nodes."""
        feeds = self._generator.generate(way, style, seed)
        if feeds is None:
            return None
        rng = np.random.default_rng((seed, 1))
        hides = {entry.name for entry in self._excerpt.border if entry.hides}
        values: dict[str, Value] = {}
        for name, array in feeds.items():
            dtype = self._generator.types(way)[name].value
            if dtype in FLOATS and self._only_moves:
                bits = _bits(array.dtype)
                values[name] = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, array.shape, bits)
            elif dtype not in FLOATS:
                values[name] = tensor(self._numbers(Order.TRUE, 0), array, dtype)
            elif style is Style.EXTREME or (style is Style.HIDING and name in hides):
                values[name] = Real.of(array, dtype)
            else:
                values[name] = Real.drawn(rng, array.shape, dtype)
        return values


def _generator(excerpt: Excerpt, border: Sequence[Border]) -> Generator:
    constants = [*excerpt.before.constants.values(), *excerpt.after.constants.values()]
    return Generator(border, constants, excerpt.operators)


def _smaller(excerpt: Excerpt) -> tuple[Border, ...] | None:
    """Return the border with smaller fixed sizes, or None if none can be reduced.

    A fixed size that no constant has and no constant holds, such as the height of an image, is one that the nodes do
    not know. Different sizes stay different, and keep their remainder modulo 8 for strides.
    """
    known = {1}
    for stored in (*excerpt.before.constants.values(), *excerpt.after.constants.values()):
        known.update(stored.shape.numpy())
        if stored.dtype.is_integer() and stored.size <= _MOST_SIZES:
            known.update(int(item) for item in np.asarray(stored.numpy()).reshape(-1))
    for side in (excerpt.before, excerpt.after):
        for node in side.proto.graph.node:
            for attribute in node.attribute:
                known.update((attribute.i, *attribute.ints))
    for entry in excerpt.border:
        known.update(item for item in entry.contents or () if isinstance(item, int))
    fixed = sorted({size for entry in excerpt.border for size in entry.shape or () if isinstance(size, int)} - known)
    new: dict[Size | None, int] = {}
    for size in fixed:
        small = _LEAST + size % 8
        while small in known or small in new.values():
            small += 8
        if small < size:
            new[size] = small
    if not new:
        return None
    return tuple(
        replace(entry, shape=None if entry.shape is None else tuple(new.get(size, size) for size in entry.shape))
        for entry in excerpt.border
    )


def _constants(excerpt: Excerpt, numbers: Numbers) -> dict[str, Value]:
    """Return the constants of both sides; a large one that both sides read may as well be any other."""
    rng = np.random.default_rng(0)
    values: dict[str, Value] = {}
    only_moves = excerpt.operators <= MOVES
    shared = excerpt.before.constants.keys() & excerpt.after.constants.keys()
    for name, stored in {**excerpt.before.constants, **excerpt.after.constants}.items():
        dtype = stored.dtype.value
        if dtype in FLOATS and only_moves:
            array = np.ascontiguousarray(stored.numpy())
            values[name] = array.view(_bits(array.dtype))
        elif dtype in FLOATS and name in shared and stored.size >= _ANY:
            values[name] = Real.drawn(rng, tuple(stored.shape.numpy()), dtype)
        elif stored.dtype == ir.DataType.STRING:
            raise Undecided("a constant of strings")
        else:
            values[name] = tensor(numbers, np.asarray(stored.numpy()), dtype)
    return values


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of integers with as many bits."""
    return np.dtype(f"i{dtype.itemsize}")


def _compare(old: Value, new: Value) -> int:
    """Return how many numbers are equal; raise if any is not. What is undefined before may be anything."""
    if old is None or new is None:
        if old is None and new is None:
            return 0
        raise _Unequal("a value of another kind")
    if kind(old) == SEQUENCE or kind(new) == SEQUENCE:
        if kind(old) != kind(new) or len(old) != len(new):
            raise _Unequal("a sequence of another length")
        return sum(itertools.starmap(_compare, zip(old, new, strict=True)))
    if tuple(old.shape) != tuple(new.shape):
        raise _OtherShape(f"shape {list(new.shape)} instead of {list(old.shape)}")
    if dtype_of(old) != dtype_of(new):
        names = (onnx.TensorProto.DataType.Name(dtype_of(value)) for value in (new, old))
        raise _Unequal(" instead of ".join(names))
    if not isinstance(old, Real):
        wrong = np.asarray(old != new)
        count = wrong.size
    else:
        undefined = np.isnan(old.doubles)
        wrong = old.differs(new) & ~undefined
        count = int((~undefined).sum())
    if wrong.any():
        far = _distance(old, new)
        kind_of = _Unequal if far is None or far > _ROUNDING else _Close
        by = "" if far is None else f", by {far:.1e} of the largest"
        raise kind_of(f"{int(wrong.sum())} of {wrong.size} elements differ{by}")
    return count


def _distance(old: Value, new: Value) -> float | None:
    """Return how far doubles are apart, relative to the largest; None for values that are not real."""
    if not isinstance(old, Real):
        return None
    scale = np.nanmax(np.abs(old.doubles), initial=0.0)
    distance = np.nanmax(np.abs(old.doubles - new.doubles), initial=0.0)
    return float(distance / scale) if scale else 0.0
