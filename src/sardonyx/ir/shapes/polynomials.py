"""Sums of products of names: the polynomials that sizes are, and what they certainly are no less than.

What is not a polynomial (a quotient, a maximum) is an atom, which `expr` makes. All work is bounded: a product of too
many terms is an unknown, and a comparison that would take too many steps has no answer.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

DIM_BITS = 20  # a named dim is taken to be below 2 ** 20 where it matters whether a type can hold what is made of it
_MOST_TERMS = 1 << 10  # of a product, before equal ones are added up
_DEEPEST = 5  # a comparison takes apart so many minima and maxima, each of them into two
_REMEMBERED = 1 << 14  # comparisons
_SERIALS = itertools.count()


class Atom(str):
    """Something that is multiplied and added as a whole: a named dim, an unknown, a quotient, a maximum.

    It is the text that tells it from all others, so that ordering and comparing are the interpreter's own.
    """

    __slots__ = ("args", "bits", "is_vague", "kind", "least", "weight")
    args: tuple[Size, ...]
    bits: int  # it is below 2 ** bits, both ways, where named dims are below 2 ** DIM_BITS
    is_vague: bool
    kind: str
    least: int | None  # it is never below; None where it may be anything
    weight: int  # how many atoms it is made of, with itself

    def __new__(cls, key: str, kind: str, args: tuple[Size, ...] = (), least: int | None = 0) -> Atom:
        """`kind` says what it is made of `args`."""
        atom = super().__new__(cls, key)
        atom.kind, atom.args, atom.least = kind, args, least
        atom.is_vague = kind == "unknown" or any(isinstance(arg, Expr) and arg.is_vague for arg in args)
        atom.weight = 1 + sum(map(weight, args))
        atom.bits = max((magnitude(arg).bit_length() for arg in args), default=DIM_BITS)
        return atom


Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial that is no plain number; made by the functions below, which give an int where they can."""

    __slots__ = ("_hash", "is_vague", "terms", "weight")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """`terms` in their one order, without zeros."""
        self.terms: Final = terms
        is_vague, weight = False, len(terms)
        for atoms, _ in terms:
            for atom in atoms:
                is_vague = is_vague or atom.is_vague
                weight += atom.weight
        self.is_vague: Final = is_vague
        self.weight: Final = weight  # how much there is to look at in it
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        """Term by term."""
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __hash__(self) -> int:
        """Of the terms."""
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __repr__(self) -> str:
        """As a person would write it."""
        return " + ".join("*".join([*([str(factor)] if factor != 1 or not atoms else []), *atoms])
                          for atoms, factor in self.terms)  # fmt: skip


Size = int | Expr


def weight(size: Size) -> int:
    """How much there is to look at in it: 0 for a number."""
    return size.weight if isinstance(size, Expr) else 0


def magnitude(size: Size) -> int:
    """What it stays below, both ways, where named dims are below 2 ** DIM_BITS.

    Different dims that are multiplied are taken for dims of one tensor, which together are no more than one dim may be.
    """
    if isinstance(size, int):
        return abs(size)
    return sum(abs(factor) << _bits(atoms) for atoms, factor in size.terms)


def _bits(atoms: Monomial) -> int:
    return max((atom.bits * count for atom, count in Counter(atoms).items()), default=0)


def lost(least: int | None) -> Expr:
    """What was too large to keep: it is itself, and no less than `least`."""
    return alone(Atom(f"?large{next(_SERIALS)}", "unknown", (), least))


def total(sizes: Iterable[Size]) -> Size:
    """The sum."""
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
    """one + other."""
    return one + other if isinstance(one, int) and isinstance(other, int) else total((one, other))


def subtract(one: Size, other: Size) -> Size:
    """One - other."""
    return add(one, multiply(other, -1))


def multiply(one: Size, other: Size) -> Size:
    """one * other."""
    if isinstance(one, int):
        if isinstance(other, int):
            return one * other
        one, other = other, one
    if isinstance(other, int):
        return one if other == 1 else normal({atoms: factor * other for atoms, factor in one.terms})
    if len(one.terms) * len(other.terms) > _MOST_TERMS:
        return lost(0 if at_least(one, 0) and at_least(other, 0) else None)
    terms = dict[Monomial, int]()
    for atoms, factor in one.terms:
        for others, by in other.terms:
            merged = tuple(sorted((*atoms, *others)))
            terms[merged] = terms.get(merged, 0) + factor * by
    return normal(terms)


def product(sizes: Iterable[Size]) -> Size:
    """All of them multiplied."""
    plain: int = 1
    rest: Size = 1
    for size in sizes:
        if isinstance(size, int):
            plain *= size
        else:
            rest = multiply(rest, size)
    return plain if isinstance(rest, int) else multiply(rest, plain)


def exact_quotient(one: Size, other: Size) -> Size | None:
    """One / other where that is certainly whole; None where it is not known to be."""
    if isinstance(one, int) and isinstance(other, int):
        return one // other if other and one % other == 0 else None
    if one == other:
        return 1
    left, divisor = dict(_terms(one)), dict(_terms(other))
    if not divisor:
        return None
    highest = max(divisor, key=_rank)
    result = dict[Monomial, int]()
    for _ in range(2 * len(left)):  # long division, from the highest term down; what divides needs no more steps
        if not left:
            break
        first = max(left, key=_rank)
        atoms = _without(first, highest)
        if atoms is None or left[first] % divisor[highest]:
            return None
        factor = left[first] // divisor[highest]
        result[atoms] = result.get(atoms, 0) + factor
        for own, by in divisor.items():
            term = tuple(sorted((*own, *atoms)))
            left[term] = left.get(term, 0) - factor * by
            if not left[term]:
                del left[term]
    return None if left else normal(result)


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Expr) else (((), size),) if size else ()


def _rank(atoms: Monomial) -> tuple[int, Monomial]:
    return len(atoms), atoms


def _without(atoms: Monomial, gone: Monomial) -> Monomial | None:
    left = list(atoms)
    for atom in gone:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def lower_bound(size: Size) -> int | None:
    """A number it is never below; None where there is none to be told."""
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
    """Whether it is certainly no less than the bound; dims may be zero."""
    return size >= bound if isinstance(size, int) else _at_least(size, bound, _DEEPEST)


@functools.lru_cache(_REMEMBERED)
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
    """Expressions that are no greater: one of its parts for a `min` that is taken away or a `max` that is added."""
    for atoms, factor in size.terms:
        if len(atoms) == 1 and atoms[0].kind == ("max" if factor > 0 else "min"):
            rest = add(size, multiply(Expr(((atoms, 1),)), -factor))
            for part in atoms[0].args:
                yield add(rest, multiply(part, factor))
            return  # one after the other


def equal(one: Size, other: Size) -> bool | None:
    """Whether they are certainly the same (True) or certainly not (False)."""
    if one == other:
        return True
    gap = subtract(one, other)
    return False if at_least(gap, 1) or at_least(multiply(gap, -1), 1) else None


def less(one: Size, other: Size) -> bool | None:
    """Whether one is certainly smaller, or certainly not."""
    gap = subtract(other, one)
    if at_least(gap, 1):
        return True
    return False if at_least(multiply(gap, -1), 0) else None


def only_atom(size: Size) -> Atom | None:
    """The atom that is all there is to it."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    ((atoms, factor),) = size.terms
    return atoms[0] if factor == 1 and len(atoms) == 1 else None


def alone(atom: Atom) -> Expr:
    """An atom as a size."""
    return Expr((((atom,), 1),))


def normal(terms: Mapping[Monomial, int]) -> Size:
    """Terms in their one order; a number where that is all they come to."""
    kept = sorted((atoms, factor) for atoms, factor in terms.items() if factor)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(kept))
