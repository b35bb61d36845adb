"""Polynomials over atoms, which represent symbolic sizes, and lower bounds of them.

Invariant of the normal form (`normal`): the terms are sorted, no factor is 0, the atoms of each monomial are sorted,
and a constant is an `int`, not an `Expr`. Equal polynomials therefore have equal terms.

What is not a polynomial (a quotient, a maximum) is an atom that `expr` constructs. All work is bounded: a product with
too many terms becomes an unknown, and a comparison that takes too many steps has no answer.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

DIM_BITS = 20  # named dimensions are assumed to be below 2 ** 20 when checking whether a type can hold a size
_MAX_TERMS = 1 << 10  # of a product, before equal monomials are added up
_MAX_DEPTH = 5  # minima and maxima that a comparison replaces by an operand; each of them doubles the work
_CACHED_COMPARISONS = 1 << 14
_SERIALS = itertools.count()


class Atom(str):
    """An indivisible factor of a term: a named dimension, an unknown, a quotient, a maximum.

    It is the string that identifies it, so that sorting and comparing use the built-in string operations. Two atoms
    with the same text have the same `kind` and `args`.
    """

    __slots__ = ("args", "bits", "is_vague", "kind", "least", "weight")
    args: tuple[Size, ...]
    bits: int  # its absolute value is below 2 ** bits if named dimensions are below 2 ** DIM_BITS
    is_vague: bool  # whether an unknown is part of it
    kind: str
    least: int | None  # a lower bound; None if there is none
    weight: int  # the number of atoms it consists of, including itself

    def __new__(cls, key: str, kind: str, args: tuple[Size, ...] = (), least: int | None = 0) -> Atom:
        """Create the atom `kind`(`args`), identified by the text `key`."""
        atom = super().__new__(cls, key)
        atom.kind, atom.args, atom.least = kind, args, least
        atom.is_vague = kind == "unknown" or any(isinstance(arg, Expr) and arg.is_vague for arg in args)
        atom.weight = 1 + sum(map(weight, args))
        atom.bits = max((magnitude(arg).bit_length() for arg in args), default=DIM_BITS)
        return atom


Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial that is not a constant. The functions below create it and return an int for a constant."""

    __slots__ = ("_hash", "is_vague", "terms", "weight")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """Take over `terms`, which must be in normal form."""
        self.terms: Final = terms
        is_vague, weight = False, len(terms)
        for atoms, _ in terms:
            for atom in atoms:
                is_vague = is_vague or atom.is_vague
                weight += atom.weight
        self.is_vague: Final = is_vague
        self.weight: Final = weight  # the cost of visiting all of it
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        """Compare term by term."""
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __hash__(self) -> int:
        """Return the hash of the terms, computed once."""
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __repr__(self) -> str:
        """Return the formula, which also identifies the expression inside the text of an atom."""
        return " + ".join("*".join([*([str(factor)] if factor != 1 or not atoms else []), *atoms])
                          for atoms, factor in self.terms)  # fmt: skip


Size = int | Expr


def weight(size: Size) -> int:
    """Return the cost of visiting the size: 0 for a number."""
    return size.weight if isinstance(size, Expr) else 0


def magnitude(size: Size) -> int:
    """Return a bound of the absolute value if named dimensions are below 2 ** DIM_BITS.

    Different dimensions that are multiplied are assumed to belong to one tensor, whose number of elements is below that
    bound as well: only powers of one atom add bits.
    """
    if isinstance(size, int):
        return abs(size)
    return sum(abs(factor) << _bits(atoms) for atoms, factor in size.terms)


def _bits(atoms: Monomial) -> int:
    return max((atom.bits * count for atom, count in Counter(atoms).items()), default=0)


def lost(least: int | None) -> Expr:
    """Return a new unknown, no less than `least`, in place of an expression that became too large."""
    return alone(Atom(f"?large{next(_SERIALS)}", "unknown", (), least))


def total(sizes: Iterable[Size]) -> Size:
    """Return the sum."""
    plain, terms = 0, dict[Monomial, int]()
    for size in sizes:
        if isinstance(size, int):
            plain += size
            continue
        for atoms, factor in size.terms:
            terms[atoms] = terms.get(atoms, 0) + factor
    if plain:
        terms[()] = terms.get((), 0) + plain
    return normal(terms)


def add(one: Size, other: Size) -> Size:
    """Return one + other."""
    return one + other if isinstance(one, int) and isinstance(other, int) else total((one, other))


def subtract(one: Size, other: Size) -> Size:
    """Return one - other."""
    return add(one, multiply(other, -1))


def multiply(one: Size, other: Size) -> Size:
    """Return one * other."""
    if isinstance(one, int):
        if isinstance(other, int):
            return one * other
        one, other = other, one
    if isinstance(other, int):
        return one if other == 1 else normal({atoms: factor * other for atoms, factor in one.terms})
    if len(one.terms) * len(other.terms) > _MAX_TERMS:
        return lost(0 if at_least(one, 0) and at_least(other, 0) else None)
    terms = dict[Monomial, int]()
    for atoms, factor in one.terms:
        for others, by in other.terms:
            merged = tuple(sorted((*atoms, *others)))
            terms[merged] = terms.get(merged, 0) + factor * by
    return normal(terms)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product."""
    plain: int = 1
    rest: Size = 1
    for size in sizes:
        if isinstance(size, int):
            plain *= size
        else:
            rest = multiply(rest, size)
    return plain if isinstance(rest, int) else multiply(rest, plain)


def exact_quotient(one: Size, other: Size) -> Size | None:
    """Return one / other if `other` divides `one` as a polynomial, otherwise None.

    None does not mean that the division leaves a remainder, only that this is not known.
    """
    if isinstance(one, int) and isinstance(other, int):
        return one // other if other and one % other == 0 else None
    if one == other:
        return 1
    dividend, divisor = dict(_terms(one)), dict(_terms(other))
    if not divisor:
        return None
    highest = max(divisor, key=_rank)
    result = dict[Monomial, int]()
    for _ in range(2 * len(dividend)):  # long division from the highest term down; a divisor needs no more steps
        if not dividend:
            break
        first = max(dividend, key=_rank)
        atoms = _without(first, highest)
        if atoms is None or dividend[first] % divisor[highest]:
            return None
        factor = dividend[first] // divisor[highest]
        result[atoms] = result.get(atoms, 0) + factor
        for divisor_atoms, by in divisor.items():
            term = tuple(sorted((*divisor_atoms, *atoms)))
            dividend[term] = dividend.get(term, 0) - factor * by
            if not dividend[term]:
                del dividend[term]
    return None if dividend else normal(result)


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Expr) else (((), size),) if size else ()


def _rank(atoms: Monomial) -> tuple[int, Monomial]:
    return len(atoms), atoms


def _without(atoms: Monomial, removed: Monomial) -> Monomial | None:
    remaining = list(atoms)
    for atom in removed:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)


def lower_bound(size: Size) -> int | None:
    """Return a number that the size is never below, or None if none is known.

    A term c * a1 * ... * ak is bounded by c * least(a1) * ... * least(ak) if c >= 0 and every least(ai) >= 0.
    """
    if isinstance(size, int):
        return size
    least = 0
    for atoms, factor in size.terms:
        bound = factor
        for atom in atoms:
            if atom.least is None or atom.least < 0 or factor < 0:
                return None
            bound *= atom.least
        least += bound
    return least


def at_least(size: Size, bound: int) -> bool:
    """Return whether the size is certainly no less than the bound. Named dimensions may be 0."""
    return size >= bound if isinstance(size, int) else _at_least(size, bound, _MAX_DEPTH)


@functools.lru_cache(_CACHED_COMPARISONS)
def _at_least(size: Expr, bound: int, depth: int) -> bool:
    least = lower_bound(size)
    if least is not None and least >= bound:
        return True
    if not depth:
        return False
    return any(
        simpler >= bound if isinstance(simpler, int) else _at_least(simpler, bound, depth - 1)
        for simpler in _below(size)
    )


def _below(size: Expr) -> Iterable[Size]:
    """Yield lower bounds of the size: an operand in place of a `max` with a positive or a `min` with a negative factor.

    Only the first such term is replaced; the caller repeats it for the others.
    """
    for atoms, factor in size.terms:
        if len(atoms) == 1 and atoms[0].kind == ("max" if factor > 0 else "min"):
            rest = add(size, multiply(Expr(((atoms, 1),)), -factor))
            for part in atoms[0].args:
                yield add(rest, multiply(part, factor))
            return


def equal(one: Size, other: Size) -> bool | None:
    """Return True if the sizes are certainly equal, False if they certainly differ, otherwise None."""
    if one == other:
        return True
    gap = subtract(one, other)
    return False if at_least(gap, 1) or at_least(multiply(gap, -1), 1) else None


def less(one: Size, other: Size) -> bool | None:
    """Return True if one < other for every size, False if one >= other for every size, otherwise None."""
    gap = subtract(other, one)
    if at_least(gap, 1):
        return True
    return False if at_least(multiply(gap, -1), 0) else None


def only_atom(size: Size) -> Atom | None:
    """Return the atom that the size consists of, or None if it is anything else."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    ((atoms, factor),) = size.terms
    return atoms[0] if factor == 1 and len(atoms) == 1 else None


def alone(atom: Atom) -> Expr:
    """Return the size that consists of one atom."""
    return Expr((((atom,), 1),))


def normal(terms: Mapping[Monomial, int]) -> Size:
    """Return the polynomial with these terms in normal form; a constant is an int."""
    ordered = sorted((atoms, factor) for atoms, factor in terms.items() if factor)
    if not ordered:
        return 0
    if len(ordered) == 1 and not ordered[0][0]:
        return ordered[0][1]
    return Expr(tuple(ordered))
