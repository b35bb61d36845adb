"""The peak as a function of the open dims: which few steps can be the peak at all, and at which sizes they take turns.

Nothing here is sampled. A step is left out only where others are proven to need no less at every size from 1 to
`LIMIT`, and a stretch is told only where its step is proven to win from its first size to its last: what cannot be
proven at once is halved, down to single sizes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sardonyx.analysis.costs.formulas import written
from sardonyx.analysis.costs.liveness import Liveness, chosen_sizes
from sardonyx.analysis.costs.program import Program
from sardonyx.ir.shapes.expr import Expr, Size, add, multiply, product, subtract, value_of
from sardonyx.ir.shapes.polynomials import Atom, Monomial, alone

# What an expression in open dims is certainly no less than, while each dim stays between two sizes.
#
# Written out from the low corner of the box (seq = 512 + y), a term whose factor is not negative only adds, and any
# other
# is bounded by its own greatest value: exact where nothing is subtracted, and ever closer the smaller the box.

Box = Mapping[str, tuple[int, int]]  # dim -> its least and greatest size, at least 1
Number = int | Fraction


def least(size: Size, box: Box) -> Number | None:
    """A number it is nowhere below in the box; None where none can be told."""
    if isinstance(size, int):
        return size
    if all(low == high for low, high in box.values()):
        return value_of(size, {name: low for name, (low, _) in box.items()})
    terms = _in_names(size, box)
    if terms is None:
        return None
    bound: Number = 0
    for atoms, factor in _from_low_corner(terms, box).items():
        if not atoms:
            bound += factor
        elif factor < 0:
            bound += factor * math.prod(box[atom][1] - box[atom][0] for atom in atoms)
    return bound


def dims_taken_away(size: Size) -> set[str]:
    """The dims that its negative terms depend on: narrowing these is what brings a bound up."""
    terms = size.terms if isinstance(size, Expr) else ()
    return {name for atoms, factor in terms if factor < 0 for atom in atoms for name in _names(atom)}


def _names(atom: Atom) -> set[str]:
    if not atom.args:
        return {str(atom)}
    inner = [each for arg in atom.args if isinstance(arg, Expr) for atoms, _ in arg.terms for each in atoms]
    return set[str]().union(*map(_names, inner))


def without_max(size: Size, most: int = 16) -> list[Size]:
    """Expressions whose greatest it is: x + max(a, b) is the greater of x + a and x + b. At most so many."""
    done, left = list[Size](), [size]
    while left and len(done) + len(left) < most:
        size = left.pop()
        parts = _two_sides(size) if isinstance(size, Expr) else None
        if parts is None:
            done.append(size)
        else:
            left += parts
    return done + left


def _two_sides(size: Expr) -> list[Size] | None:
    for atoms, factor in size.terms:
        greater = next((atom for atom in atoms if atom.kind == "max"), None)
        if greater is None or factor < 0 or any(atom.least is None or atom.least < 0 for atom in atoms):
            continue
        rest = list(atoms)
        rest.remove(greater)
        others = subtract(size, Expr(((atoms, factor),)))
        return [add(others, product((factor, part, *map(alone, rest)))) for part in greater.args]
    return None


def _from_low_corner(terms: Mapping[Monomial, Number], box: Box) -> dict[Monomial, Number]:
    """The same polynomial in how far each dim is above its least."""
    moved = dict[Monomial, Number]()
    for atoms, factor in terms.items():
        part: dict[Monomial, Number] = {(): factor}
        for atom in atoms:
            low, high = box[atom]
            grown: dict[Monomial, Number] = {own: by * low for own, by in part.items()}
            if high > low:
                for own, by in part.items():
                    key = tuple(sorted((*own, atom)))
                    grown[key] = grown.get(key, 0) + by
            part = grown
        for own, by in part.items():
            moved[own] = moved.get(own, 0) + by
    return moved


def _in_names(size: Expr, box: Box) -> dict[Monomial, Number] | None:
    """A polynomial in dims alone that is nowhere greater: quotients without their rounding, the rest by its range."""
    named = dict[Monomial, Number]()
    left: list[tuple[Monomial, Number]] = list(size.terms)
    while left:
        atoms, factor = left.pop()
        odd = next((atom for atom in atoms if atom.args), None)
        if odd is None:
            named[atoms] = named.get(atoms, 0) + factor
            continue
        rest = list(atoms)
        rest.remove(odd)
        bounds = _without_rounding(odd, box, is_upper=factor < 0)
        if bounds is None or any(_may_be_negative(atom, box) for atom in rest):
            return None
        left += [(tuple(sorted((*rest, *own))), by * factor) for own, by in bounds]
    return named


def _without_rounding(atom: Atom, box: Box, *, is_upper: bool) -> list[tuple[Monomial, Number]] | None:
    """One bound of an atom that is no dim, as terms."""
    between = _atom_range(atom, box)
    if between is not None and between[0] == between[1]:
        return [((), between[0])]
    if atom.kind == "//" and isinstance(atom.args[0], Expr) and isinstance(atom.args[1], int) and atom.args[1] > 0:
        by = atom.args[1]
        terms: list[tuple[Monomial, Number]] = [(own, Fraction(factor, by)) for own, factor in atom.args[0].terms]
        return terms if is_upper else [*terms, ((), Fraction(1 - by, by))]
    return None if between is None else [((), between[1] if is_upper else between[0])]


def _may_be_negative(atom: Atom, box: Box) -> bool:
    between = _atom_range(atom, box)
    return between is None or between[0] < 0


def _range(size: Size, box: Box) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    low = high = 0
    for atoms, factor in size.terms:
        least_, most = factor, factor
        for atom in atoms:
            between = _atom_range(atom, box)
            if between is None:
                return None
            corners = [one * other for one in (least_, most) for other in between]
            least_, most = min(corners), max(corners)
        low, high = low + least_, high + most
    return low, high


def _atom_range(atom: Atom, box: Box) -> tuple[int, int] | None:
    if not atom.args:
        return box[atom]
    one, other = (_range(arg, box) for arg in atom.args)
    if one is None or other is None:
        return None
    if atom.kind in ("//", "%"):
        if other[0] <= 0:
            return None
        corners = [top // bottom for top in one for bottom in other]
        return (min(corners), max(corners)) if atom.kind == "//" else (0, other[1] - 1)
    if atom.kind == "broadcast":
        return min(one[0], other[0]), max(one[1], other[1])
    pick = max if atom.kind == "max" else min
    return pick(one[0], other[0]), pick(one[1], other[1])


LIMIT = 1 << 24  # sizes that are looked at: 1 … 16,777,216
_PIECES = 4_000  # of a dim, before the rest of it is left untold: only rounded sizes can take turns that often
_PATIENCE = 24  # boxes that are tried to prove that a step is never the peak; it is kept where they do not suffice
_STRONG = 5  # steps that others are held against, those that were the peak most often
_WEIGHTS = ((1, 1), (1, 7), (7, 1))  # of two steps, between which a third may be seen to lie
_SHOWN = 6  # expressions that are written out before it is asked which of them matter
_SAMPLES = 150  # points at which steps are looked for that are the peak somewhere

Order = Literal["less", "equal", "more"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that is the peak at some sizes; of steps that always need the same, the earliest.

    A step that needs the greater of two things stands twice among the candidates, once with each.
    """

    bytes: Size
    step: int
    operation: str
    module: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sizes of one dim, both ends included, over which one step is the peak."""

    first: int
    last: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sizes of one dim, both ends included, over which one program needs less, as much or more than another."""

    first: int
    last: int
    order: Order


@dataclass(frozen=True, slots=True)
class PeakFunction:
    """The peak of activations in bytes: the greatest of a few expressions."""

    program: Program
    candidates: tuple[Candidate, ...]  # in the order of their steps

    def at(self, sizes: Mapping[str, int] | None = None) -> int:
        """Bytes at these sizes; the example's where none are given."""
        chosen = chosen_sizes(self.program, sizes)
        return max((value_of(one.bytes, chosen) for one in self.candidates), default=0)

    def winner(self, sizes: Mapping[str, int] | None = None) -> Candidate | None:
        """The step that is the peak at these sizes, the earliest of equals."""
        return _winner(self.candidates, chosen_sizes(self.program, sizes)) if self.candidates else None

    @property
    def text(self) -> str:
        """The formula, in bytes."""
        shown = self.candidates
        if len(shown) > _SHOWN:  # of rounded sizes many steps can be the peak in some odd corner
            told = {part.candidate for dim in self.program.symbols for part in self.stretches(dim)}
            shown = [one for one in shown if one in told]
        parts = [written(one.bytes) for one in shown]
        if len(shown) < len(self.candidates):
            parts.append(f"{len(self.candidates) - len(shown)} more, far from the example")
        return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})" if parts else "0"

    def stretches(self, dim: str, held: Mapping[str, int] | None = None) -> tuple[Stretch, ...]:
        """Which step is the peak at each size of `dim`, the other dims held at these sizes or at the example's.

        The last one ends at `LIMIT`, or earlier where nothing could be proven of what follows.
        """
        if not self.candidates:
            return ()
        box = _section(self.program, dim, held)
        found = list[Stretch]()
        for low, high, candidate in _won(self.candidates, dim, box):
            if found and found[-1].candidate.step == candidate.step:
                low = found.pop().first
            found.append(Stretch(low, high, candidate))
        return tuple(found)


def peak_function(liveness: Liveness) -> PeakFunction:
    """The peak as a function of the program's open dims."""
    program = liveness.program
    first = dict[Size, int]()
    for step, size in enumerate(liveness.timeline):
        if size not in first:
            for part in without_max(size):
                first.setdefault(part, step)
    box = dict.fromkeys(program.symbols, (1, LIMIT))
    kept = list[Candidate]()
    order = sorted(first, key=lambda size: (-value_of(size, program.symbols), first[size]))
    for size in order:  # who needs less at the example cannot beat who was before it
        operation = program.operations[first[size]]
        new = Candidate(size, first[size], operation.name, operation.module)
        if not any(_beats(one, new, box) for one in kept):
            kept.append(new)
    return PeakFunction(program, tuple(sorted(_needed(kept, box), key=lambda one: one.step)))


def _needed(candidates: Sequence[Candidate], box: Box) -> Sequence[Candidate]:
    """Without those that are proven never to be the peak, beside those that are at some point that was tried."""
    if len(candidates) < 2:
        return candidates
    seen = Counter(_winner(candidates, point) for point in _points(box))
    sure = [one for one, _ in seen.most_common(_STRONG)]
    return [one for one in candidates
            if one in seen or not (_is_below_a_mean(one, sure, box) or _is_never_first(one, sure, box))]  # fmt: skip


def _is_below_a_mean(one: Candidate, rivals: Sequence[Candidate], box: Box) -> bool:
    """Whether a weighted mean of two rivals is nowhere below it: then the greater of them is not either."""
    for first, second in itertools.combinations(rivals, 2):
        by = 0 if max(first.step, second.step) <= one.step else 1
        for left, right in _WEIGHTS:
            mean = add(multiply(first.bytes, left), multiply(second.bytes, right))
            if _is_above(mean, multiply(one.bytes, left + right), box, by):
                return True
    return False


def _points(box: Box) -> Iterator[dict[str, int]]:
    """A grid from 1 up, the coarser the more dims there are."""
    sides = int(_SAMPLES ** (1 / len(box)) + 1e-9)
    sizes = [round(LIMIT ** (place / (sides - 1))) for place in range(sides)]
    for point in itertools.product(sizes, repeat=len(box)):
        yield dict(zip(box, point, strict=True))


def compare(
    one: PeakFunction, other: PeakFunction, dim: str, held: Mapping[str, int] | None = None, *, percent: int = 0
) -> tuple[Comparison, ...]:
    """At which sizes of `dim` the first needs less memory than the second, as much, or more.

    Args:
        held: Sizes of the other dims; the example's where none are given.
        percent: What differs by no more than this counts as equal.
    """
    box = {**_section(other.program, dim, held), **_section(one.program, dim, held)}
    ones, others = (_scaled(function, percent) for function in (one, other))
    found = list[Comparison]()
    left = [box[dim]]
    for _ in range(_PIECES):
        if not left:
            break
        low, high = left.pop()
        order = _order(ones, others, {**box, dim: (low, high)})
        if order is None:
            left += reversed(_halves(low, high))
        elif found and found[-1].order == order:
            found[-1] = Comparison(found[-1].first, high, order)
        else:
            found.append(Comparison(low, high, order))
    return tuple(found)


_Scaled = tuple[Sequence[Size], Sequence[Size]]  # a peak's expressions, and the same with the margin added; in percent


def _scaled(function: PeakFunction, percent: int) -> _Scaled:
    sizes = [each.bytes for each in function.candidates] or [0]
    return [multiply(size, 100) for size in sizes], [multiply(size, 100 + percent) for size in sizes]


def _order(ones: _Scaled, others: _Scaled, box: Box) -> Order | None:
    """How the greatest of each compare everywhere in the box, where that can be proven."""

    def is_above(high: Sequence[Size], low: Sequence[Size], by: int) -> bool:
        return any(all(_is_above(top, under, box, by) for under in low) for top in high)

    if is_above(ones[0], others[1], 1):
        return "more"
    if is_above(others[0], ones[1], 1):
        return "less"
    return "equal" if is_above(ones[1], others[0], 0) and is_above(others[1], ones[0], 0) else None


def _section(program: Program, dim: str, held: Mapping[str, int] | None) -> dict[str, tuple[int, int]]:
    sizes = chosen_sizes(program, {dim: 1, **(held or {})})
    return {name: (size, size) for name, size in sizes.items()} | {dim: (1, LIMIT)}


def _won(candidates: Sequence[Candidate], dim: str, box: Box) -> Iterator[tuple[int, int, Candidate]]:
    """Pieces of the dim in order, each with the step that wins all of it."""
    left = [(*box[dim], list(candidates))]
    for _ in range(_PIECES):
        if not left:
            return
        low, high, rivals = left.pop()
        piece = {**box, dim: (low, high)}
        best = _winner(rivals, {name: first for name, (first, _) in piece.items()})
        unbeaten = [one for one in rivals if one is not best and not _beats(best, one, piece)]
        if not unbeaten:
            yield low, high, best
            continue
        left += [(*half, [best, *unbeaten]) for half in reversed(_halves(low, high))]


def _halves(low: int, high: int) -> list[tuple[int, int]]:
    middle = (low + high) // 2
    return [(low, middle), (middle + 1, high)]


def _winner(candidates: Sequence[Candidate], sizes: Mapping[str, int]) -> Candidate:
    return min(candidates, key=lambda one: (-value_of(one.bytes, sizes), one.step))


def _beats(one: Candidate, other: Candidate, box: Box) -> bool:
    """Whether `other` is certainly not the peak anywhere in the box: of equals the earlier step is."""
    return _is_above(one.bytes, other.bytes, box, 0 if one.step <= other.step else 1)


def _is_above(one: Size, other: Size, box: Box, by: int) -> bool:
    bound = least(subtract(one, other), box)
    return bound is not None and bound >= by


def _is_never_first(one: Candidate, rivals: Sequence[Candidate], box: Box) -> bool:
    """Whether at every size some rival is proven to win against it, not everywhere the same one."""
    taken = set[str]().union(*(dims_taken_away(subtract(rival.bytes, one.bytes)) for rival in rivals))
    left = [box]
    for _ in range(_PATIENCE):
        if not left:
            return True
        piece = left.pop()
        if any(_beats(rival, one, piece) for rival in rivals):
            continue
        widest = max(taken or piece, key=lambda name: piece[name][1] / piece[name][0])
        low, high = piece[widest]
        if low == high:
            return False
        middle = min(high - 1, max(low, math.isqrt(low * high)))
        left += [{**piece, widest: (low, middle)}, {**piece, widest: (middle + 1, high)}]
    return not left
