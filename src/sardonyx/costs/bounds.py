"""What an expression in open dims is certainly no less than, while each dim stays between two sizes.

Written out from the low corner of the box (seq = 512 + y), a term whose factor is not negative only adds, and any other
is bounded by its own greatest value: exact where nothing is subtracted, and ever closer the smaller the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from sardonyx.graph.shapes.expr import Expr, Size, add, product, subtract, value_of
from sardonyx.graph.shapes.terms import Atom, Monomial, alone

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
