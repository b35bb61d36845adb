"""The memory that a program needs at each step, the buffers alive at its peak, and the peak as a function of the sizes.

A buffer is alive from the operation that allocates it until after the last one that reads or writes a value in it;
outputs stay alive. While an operation runs, its inputs, outputs and workspace are alive together. Weights and inputs
belong to the caller and are counted separately. `docs/memory.md` lists what this leaves out.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import (
    Atom,
    Expr,
    Monomial,
    Size,
    add,
    alone,
    multiply,
    product,
    subtract,
    total,
    value_of,
)
from sardonyx.records.analysis import Alive
from sardonyx.verbs.analyze.costs.program import Operation, Program, Store, format_size


class Span(Struct, frozen=True):
    """The steps during which one activation buffer is alive, both ends included."""

    buffer: int
    bytes: Size
    first: int
    last: int


class Peak(Struct, frozen=True):
    """The step that needs the most memory, at given sizes."""

    bytes: int  # activations, and the workspace of the running operation
    weights: int
    inputs: int
    workspace: int
    step: int | None  # None: the program has no operations
    operation: Operation | None
    alive: tuple[Alive, ...]  # largest first

    @property
    def modules(self) -> dict[str, int]:
        """The bytes of each module at the peak, largest first; a workspace counts for the running operation."""
        by_module = Counter[str]()
        for buffer in self.alive:
            by_module[buffer.module] += buffer.bytes
        if self.operation is not None and self.workspace:
            by_module[self.operation.module] += self.workspace
        return dict(by_module.most_common())


class Liveness(Struct, frozen=True):
    """The live bytes while each operation runs, symbolic if the program has dynamic dimensions."""

    program: Program
    timeline: tuple[Size, ...]  # activations and workspace, one for each step
    weights: Size
    inputs: Size
    spans: tuple[Span, ...]

    def values(self, sizes: Mapping[str, int] | None = None) -> list[int]:
        """Return the timeline in bytes at these sizes, by default the example's."""
        chosen = chosen_sizes(self.program, sizes)
        numbers = {size: value_of(size, chosen) for size in set(self.timeline)}
        return [numbers[size] for size in self.timeline]

    def at(self, sizes: Mapping[str, int] | None = None) -> Peak:
        """Return the peak at these sizes, by default the example's; of equal steps, the earliest."""
        chosen = chosen_sizes(self.program, sizes)
        numbers = self.values(chosen)
        weights, inputs = value_of(self.weights, chosen), value_of(self.inputs, chosen)
        if not numbers:
            return Peak(0, weights, inputs, 0, None, None, ())
        step = max(range(len(numbers)), key=numbers.__getitem__)
        operation = self.program.operations[step]
        alive: list[tuple[int, Alive]] = []
        for span in self.spans:
            if span.first <= step <= span.last:
                buffer = self.program.buffers[span.buffer]
                creator = "" if buffer.born is None else self.program.operations[buffer.born].name
                alive.append((span.buffer, Alive(value_of(span.bytes, chosen), buffer.module, creator)))
        alive.sort(key=lambda one: (-one[1].bytes, one[0]))
        workspace = value_of(operation.workspace, chosen)
        return Peak(numbers[step], weights, inputs, workspace, step, operation, tuple(each for _, each in alive))


def liveness(program: Program, *, as_run: bool = False) -> Liveness:
    """Compute the live bytes at each step, in time linear in the number of operations.

    With `as_run`, buffers are freed when the recorded run freed them, as Python does; otherwise after their last use.
    """
    end = len(program.operations)  # one past the last step
    touched: dict[int, int] = {}  # the last step that reads or writes each buffer
    for step, operation in enumerate(program.operations):
        for value in chain(operation.reads, operation.writes):
            touched[program.values[value].buffer] = step
    touched.update({program.values[value].buffer: end for value in program.outputs})
    spans: list[Span] = []
    allocated, freed = defaultdict[int, list[Size]](list), defaultdict[int, list[Size]](list)
    for index, buffer in enumerate(program.buffers):
        if buffer.store is Store.ACTIVATION:
            first = buffer.born or 0
            last = touched.get(index, first) if not as_run else end if buffer.died is None else buffer.died
            span = Span(index, buffer.bytes, first, max(first, last))
            spans.append(span)
            allocated[span.first].append(span.bytes)
            freed[span.last].append(span.bytes)
    live: Size = 0
    timeline = list[Size]()
    for step, operation in enumerate(program.operations):
        live = total((live, *allocated[step]))
        timeline.append(add(live, operation.workspace))
        live = subtract(live, total(freed[step]))
    weights, inputs = (
        total(buffer.bytes for buffer in program.buffers if buffer.store is store)
        for store in (Store.WEIGHT, Store.INPUT)
    )
    return Liveness(program, tuple(timeline), weights, inputs, tuple(spans))


def thinned(values: Sequence[int], most: int = 2000) -> tuple[tuple[int, int], ...]:
    """Return a timeline as at most `most` points (step, bytes): the largest of each interval, so no peak is lost."""
    stride = max(1, -(-len(values) // most))
    points = list[tuple[int, int]]()
    for start in range(0, len(values), stride):
        step = max(range(start, min(start + stride, len(values))), key=values.__getitem__)
        points.append((step, values[step]))
    return tuple(points)


def chosen_sizes(program: Program, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of the example, overridden by the given ones."""
    check_sizes(sizes or {}, program.symbols)
    return {**program.symbols, **(sizes or {})}


def check_sizes(sizes: Mapping[str, int], dims: Iterable[str]) -> None:
    """Refuse sizes below 1, and sizes of other dimensions than these."""
    names = list(dims)
    for name, size in sizes.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            suggestion = f"did you mean {close[0]}? " if close else ""
            hint = f"{suggestion}dynamic dimensions: {', '.join(names) or 'none'}"
            raise UsageError(f"there is no dynamic dimension {name!r}", hint=hint)
        if size < 1:
            raise UsageError(f"{name} cannot be {size}", hint="sizes start at 1")


Box = Mapping[str, tuple[int, int]]  # dimension -> its least and greatest size, at least 1
Number = int | Fraction
Polynomial = dict[Monomial, Number]
Range = tuple[int, int]


class Bounds:
    """Lower bounds of expressions over a box, in which each dimension d lies between low(d) and high(d).

    With d = low(d) + y and 0 <= y <= high(d) - low(d), an expression is a polynomial in the y. A term with a positive
    coefficient is at least 0; a term with a negative coefficient c is at least c · Π (high - low). The bound is exact
    if no coefficient is negative, and gets closer as the box gets smaller. Quotients are bounded by themselves without
    rounding, other functions by their range. The steps of a program share most terms, so the bounds of terms are kept.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._is_point = all(low == high for low, high in box.values())
        self._ranges: dict[Atom, Range | None] = {}
        self._products: dict[tuple[Monomial, bool], Polynomial | None] = {}

    def least(self, size: Size) -> Number | None:
        """Return a lower bound, or None if none can be derived; in a box that is one point, the value."""
        if isinstance(size, int):
            return size
        if self._is_point:
            between = self._range(size)
            return None if between is None else between[0]
        terms = self._sum(size.terms, is_upper=False)
        if terms is None:
            return None
        bound: Number = 0
        for atoms, factor in terms.items():
            if not atoms:
                bound += factor
            elif factor < 0:
                bound += factor * math.prod(self._box[atom][1] - self._box[atom][0] for atom in atoms)
        return bound

    def _sum(self, terms: Iterable[tuple[Monomial, Number]], *, is_upper: bool) -> Polynomial | None:
        """Return a polynomial in the y that is nowhere greater than the sum of these terms, or nowhere less."""
        polynomial: Polynomial = {}
        for atoms, factor in terms:
            key = atoms, is_upper != (factor < 0)
            if key not in self._products:
                self._products[key] = self._product(*key)
            bound = self._products[key]
            if bound is None:
                return None
            for own, by in bound.items():
                polynomial[own] = polynomial.get(own, 0) + by * factor
        return polynomial

    def _product(self, atoms: Monomial, is_upper: bool) -> Polynomial | None:
        function = next((atom for atom in atoms if atom.args), None)
        if function is None:
            return self._from_low_corner(atoms)
        rest = list(atoms)
        rest.remove(function)
        ranges = map(self._atom_range, rest)
        bounds = self._function_bound(function, is_upper=is_upper)
        if bounds is None or any(between is None or between[0] < 0 for between in ranges):
            return None
        return self._sum([(tuple(sorted((*rest, *own))), by) for own, by in bounds], is_upper=is_upper)

    def _from_low_corner(self, atoms: Monomial) -> Polynomial:
        """Return a product of dimensions as a polynomial in their distances from their least sizes."""
        shifted: Polynomial = {(): 1}
        for atom in atoms:
            low, high = self._box[atom]
            grown: Polynomial = {own: by * low for own, by in shifted.items()}
            if high > low:
                for own, by in shifted.items():
                    key = tuple(sorted((*own, atom)))
                    grown[key] = grown.get(key, 0) + by
            shifted = grown
        return shifted

    def _function_bound(self, atom: Atom, *, is_upper: bool) -> list[tuple[Monomial, Number]] | None:
        """Return an upper or lower bound of an atom that is not a dimension, as terms."""
        between = self._atom_range(atom)
        if between is not None and between[0] == between[1]:
            return [((), between[0])]
        if atom.kind == "//" and isinstance(atom.args[0], Expr) and isinstance(atom.args[1], int) and atom.args[1] > 0:
            by = atom.args[1]
            terms: list[tuple[Monomial, Number]] = [(own, Fraction(factor, by)) for own, factor in atom.args[0].terms]
            return terms if is_upper else [*terms, ((), Fraction(1 - by, by))]
        if between is not None and atom.kind == ("min" if is_upper else "max"):
            # bounded by any argument: that which it equals in the low corner
            corner = {name: low for name, (low, _) in self._box.items()}
            nearest = (min if is_upper else max)(atom.args, key=lambda argument: value_of(argument, corner))
            return [((), nearest)] if isinstance(nearest, int) else list(nearest.terms)
        return None if between is None else [((), between[1] if is_upper else between[0])]

    def _range(self, size: Size) -> Range | None:
        if isinstance(size, int):
            return size, size
        low = high = 0
        for atoms, factor in size.terms:
            least, most = factor, factor
            for atom in atoms:
                between = self._atom_range(atom)
                if between is None:
                    return None
                corners = [one * other for one in (least, most) for other in between]
                least, most = min(corners), max(corners)
            low, high = low + least, high + most
        return low, high

    def _atom_range(self, atom: Atom) -> Range | None:
        if not atom.args:
            return self._box[atom]
        if atom not in self._ranges:  # quotients are nested as deeply as strided convolutions, each with several copies
            one, other = map(self._range, atom.args)
            self._ranges[atom] = None if one is None or other is None else _function_range(atom.kind, one, other)
        return self._ranges[atom]


def _function_range(kind: str, one: Range, other: Range) -> Range | None:
    """Return the range of a function of values in these ranges; exact if each is a single value."""
    if kind in ("//", "%"):
        if other[0] <= 0:
            return None
        corners = [top // bottom for top in one for bottom in other]
        low, high = min(corners), max(corners)
        if kind == "//":
            return low, high
        is_linear = low == high and other[0] == other[1]
        return (one[0] - low * other[0], one[1] - low * other[0]) if is_linear else (0, other[1] - 1)
    if kind in ("max", "min"):
        pick = max if kind == "max" else min
        return pick(one[0], other[0]), pick(one[1], other[1])
    passed = 1 if kind == "broadcast" else 0  # the value of the first at which the result is the second
    if one == (passed, passed):
        return other
    return one if not one[0] <= passed <= one[1] else (min(one[0], other[0]), max(one[1], other[1]))


def without_max(size: Size, most: int = 16) -> list[Size]:
    """Return at most `most` expressions whose maximum is `size`: x + max(a, b) becomes x + a and x + b."""
    done, pending = list[Size](), [size]
    while pending and len(done) + len(pending) < most:
        size = pending.pop()
        parts = _split_max(size) if isinstance(size, Expr) else None
        if parts is None:
            done.append(size)
        else:
            pending += parts
    return done + pending


def _split_max(size: Expr) -> list[Size] | None:
    for atoms, factor in size.terms:
        greater = next((atom for atom in atoms if atom.kind == "max"), None)
        if greater is None or factor < 0 or any(atom.least is None or atom.least < 0 for atom in atoms):
            continue
        rest = list(atoms)
        rest.remove(greater)
        others = subtract(size, Expr(((atoms, factor),)))
        return [add(others, product((factor, part, *map(alone, rest)))) for part in greater.args]
    return None


MAX_SIZE = 1 << 24  # sizes from 1 to this are considered
_MAX_PIECES = 4_000  # intervals examined of one dimension, after which the rest of it is not reported
_MAX_RIVALS = 6  # candidates of whose means a step is compared with: all of them in most models
_WEIGHTS = ((1, 1), (1, 7), (7, 1))  # of these means
_EXPRESSIONS_SHOWN = 6  # up to this many expressions the formula shows all of them

Order = Literal["less", "equal", "more"]
_Value = TypeVar("_Value")


class Candidate(Struct, frozen=True):
    """A step that is the peak at some sizes; of steps with equal expressions, the earliest.

    A step that needs the maximum of two expressions is listed twice, once with each.
    """

    bytes: Size
    step: int
    operation: str
    module: str


class Stretch(Struct, Generic[_Value], frozen=True):
    """An interval of sizes of one dimension, both ends included, in which something holds."""

    first: int
    last: int
    value: _Value


class PeakFunction(Struct, frozen=True):
    """The peak of activations in bytes: the maximum of a few expressions."""

    program: Program
    candidates: tuple[Candidate, ...]  # in the order of their steps

    @property
    def text(self) -> str:
        """The formula, in bytes."""
        shown = self.candidates
        if len(shown) > _EXPRESSIONS_SHOWN:  # with rounded sizes, many steps can be the peak at a few unusual sizes
            near_example = {part.value for dim in self.program.symbols for part in self.stretches(dim)}
            shown = [candidate for candidate in shown if candidate in near_example]
        parts = [format_size(candidate.bytes) for candidate in shown]
        if len(shown) < len(self.candidates):
            parts.append(f"{len(self.candidates) - len(shown)} more, far from the example")
        return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})" if parts else "0"

    def stretches(self, dim: str, fixed: Mapping[str, int] | None = None) -> list[Stretch[Candidate]]:
        """Return which step is the peak at each size of `dim`, with the other sizes fixed, by default at the example's.

        The last interval ends at `MAX_SIZE`, or earlier if there is no proof for what follows.
        """
        box = _section(self.program, dim, fixed)

        def peak(low: int, high: int, rivals: Sequence[Candidate]) -> tuple[Candidate | None, Sequence[Candidate]]:
            start = {name: least for name, (least, _) in box.items()} | {dim: low}
            bounds = Bounds({**box, dim: (low, high)})
            best = min(rivals, key=lambda rival: (-value_of(rival.bytes, start), rival.step))
            unbeaten = [rival for rival in rivals if rival is not best and not _beats(best, rival, bounds)]
            return None if unbeaten else best, [best, *unbeaten]

        return _stretches(peak, self.candidates, lambda candidate: candidate.step) if self.candidates else []


_State = TypeVar("_State")


def _stretches(
    decide: Callable[[int, int, _State], tuple[_Value | None, _State]], state: _State, key: Callable[[_Value], object]
) -> list[Stretch[_Value]]:
    """Halve the sizes up to `MAX_SIZE` until `decide` returns a value for each interval; join those with equal keys.

    `decide` gets an interval with the state that it returned for the interval that was halved.
    """
    stretches, pending = list[Stretch[_Value]](), [(1, MAX_SIZE, state)]  # the first interval comes last
    for _ in range(_MAX_PIECES):
        if not pending:
            break
        low, high, state = pending.pop()
        value, state = decide(low, high, state)
        if value is None:
            middle = (low + high) // 2
            pending += [(middle + 1, high, state), (low, middle, state)]
            continue
        if stretches and key(stretches[-1].value) == key(value):
            low = stretches.pop().first
        stretches.append(Stretch(low, high, value))
    return stretches


def peak_function(liveness: Liveness) -> PeakFunction:
    """Return the peak as a function of the program's dynamic dimensions."""
    program = liveness.program
    first = dict[Size, int]()
    for step, size in enumerate(liveness.timeline):
        if size not in first:
            for part in without_max(size):
                first.setdefault(part, step)
    bounds = Bounds(dict.fromkeys(program.symbols, (1, MAX_SIZE)))
    candidates = list[Candidate]()
    order = sorted(first, key=lambda size: (-value_of(size, program.symbols), first[size]))
    for size in order:  # by decreasing size at the example: no expression dominates an earlier one
        operation = program.operations[first[size]]
        new = Candidate(size, first[size], operation.name, operation.module)
        if not any(_beats(candidate, new, bounds) for candidate in candidates):
            candidates.append(new)
    return PeakFunction(program, tuple(sorted(_needed(candidates, bounds), key=lambda candidate: candidate.step)))


def _needed(candidates: Sequence[Candidate], bounds: Bounds) -> Sequence[Candidate]:
    """Return the candidates without those of which a mean of two others is nowhere less: their maximum is not either.

    The candidates are sorted by decreasing size at the example; the means are of the first of them.
    """
    kept = list(candidates)
    for one in reversed(candidates):
        rivals = [rival for rival in kept if rival is not one][:_MAX_RIVALS]
        if any(_is_below_a_mean(one, *pair, bounds) for pair in itertools.combinations(rivals, 2)):
            kept.remove(one)
    return kept


def _is_below_a_mean(one: Candidate, first: Candidate, second: Candidate, bounds: Bounds) -> bool:
    by = 0 if max(first.step, second.step) <= one.step else 1
    for left, right in _WEIGHTS:
        mean = add(multiply(first.bytes, left), multiply(second.bytes, right))
        if _is_above(mean, multiply(one.bytes, left + right), bounds, by):
            return True
    return False


def compare(
    one: PeakFunction, other: PeakFunction, dim: str, fixed: Mapping[str, int] | None = None
) -> list[Stretch[Order]]:
    """Return at which sizes of `dim` the first program needs less memory than the second, equally much, or more.

    The sizes of other dimensions are fixed, by default at the example's.
    """
    box = {**_section(other.program, dim, fixed), **_section(one.program, dim, fixed)}
    ones, others = ([part.bytes for part in function.candidates] or [0] for function in (one, other))

    def order(low: int, high: int, _: None) -> tuple[Order | None, None]:
        return _order(ones, others, Bounds({**box, dim: (low, high)})), None

    return _stretches(order, None, str)


def _order(ones: Sequence[Size], others: Sequence[Size], bounds: Bounds) -> Order | None:
    """Return how the maxima compare everywhere in the box, or None if there is no proof."""

    def is_above(high: Sequence[Size], low: Sequence[Size], by: int) -> bool:
        return any(all(_is_above(top, under, bounds, by) for under in low) for top in high)

    if is_above(ones, others, 1):
        return "more"
    if is_above(others, ones, 1):
        return "less"
    return "equal" if is_above(ones, others, 0) and is_above(others, ones, 0) else None


def _section(program: Program, dim: str, fixed: Mapping[str, int] | None) -> dict[str, tuple[int, int]]:
    sizes = chosen_sizes(program, {dim: 1, **(fixed or {})})
    return {name: (size, size) for name, size in sizes.items()} | {dim: (1, MAX_SIZE)}


def _beats(one: Candidate, other: Candidate, bounds: Bounds) -> bool:
    """Return whether it is proven that `other` is nowhere the peak in the box; of equal steps the earlier one is."""
    return _is_above(one.bytes, other.bytes, bounds, 0 if one.step <= other.step else 1)


def _is_above(one: Size, other: Size, bounds: Bounds, by: int) -> bool:
    bound = bounds.least(subtract(one, other))
    return bound is not None and bound >= by
