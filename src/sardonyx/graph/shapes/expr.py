"""Sizes as integer expressions: sums of products of named dims, with what cannot be simplified kept as an atom.

Two expressions are equal only where they are the same number for every size the model may be run with, so `==` is a
proof. The reverse does not hold: what cannot be shown to be equal is merely not known. Divisions are only asked where a
zero divisor is an error of the model itself, so that what cancels may be cancelled.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast


class Atom:
    """Something that is multiplied and added as a whole: a named dim, an unknown, a quotient, a maximum."""

    __slots__ = ("args", "is_vague", "key", "kind", "signed")

    def __init__(self, kind: str, args: tuple[Size, ...], key: str, *, signed: bool) -> None:
        """`key` tells it from all others; `signed` where it may be negative."""
        self.kind: Final = kind
        self.args: Final = args
        self.key: Final = key
        self.signed: Final = signed
        self.is_vague: Final = kind == "unknown" or any(isinstance(arg, Expr) and arg.is_vague for arg in args)

    def __eq__(self, other: object) -> bool:
        """By key."""
        return isinstance(other, Atom) and self.key == other.key

    def __hash__(self) -> int:
        """By key."""
        return hash(self.key)

    def __lt__(self, other: Atom) -> bool:
        """By key, so that sums have one order."""
        return self.key < other.key


Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial that is no plain number; made by the functions below, which give an int where they can."""

    __slots__ = ("_hash", "is_vague", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """`terms` in their one order, without zeros."""
        self.terms: Final = terms
        self._hash: Final = hash(terms)
        self.is_vague: Final = any(atom.is_vague for atoms, _ in terms for atom in atoms)

    def __eq__(self, other: object) -> bool:
        """Term by term."""
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __hash__(self) -> int:
        """Of the terms."""
        return self._hash

    def __repr__(self) -> str:
        """As a person would write it."""
        return " + ".join("*".join([*([str(factor)] if factor != 1 or not atoms else []), *(a.key for a in atoms)])
                          for atoms, factor in self.terms)  # fmt: skip


Size = int | Expr


def symbol(name: str) -> Expr:
    """A dim by its name."""
    key = name if name.isidentifier() else repr(name)  # no name can pass for an expression
    return _alone(Atom("name", (), key, signed=False))


def unknown(serial: int) -> Expr:
    """A dim of which nothing is known but that it is the same as itself."""
    return _alone(Atom("unknown", (), f"?{serial}", signed=False))


def declared(size: Size) -> int | str | None:
    """How a file says it: a number, a name, or nothing, since a formula is no name."""
    if isinstance(size, int):
        return size
    ((atoms, factor), *more) = size.terms
    if more or factor != 1 or len(atoms) != 1 or atoms[0].kind != "name":
        return None
    return atoms[0].key if atoms[0].key.isidentifier() else cast("str", ast.literal_eval(atoms[0].key))


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
    return _normal(terms)


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
        return one if other == 1 else _normal({atoms: factor * other for atoms, factor in one.terms})
    terms = dict[Monomial, int]()
    for atoms, factor in one.terms:
        for others, by in other.terms:
            merged = tuple(sorted((*atoms, *others)))
            terms[merged] = terms.get(merged, 0) + factor * by
    return _normal(terms)


def product(sizes: Iterable[Size]) -> Size:
    """All of them multiplied."""
    result: Size = 1
    for size in sizes:
        result = multiply(result, size)
    return result


def exact_quotient(one: Size, other: Size) -> Size | None:
    """One / other where that is certainly whole; None where it is not known to be."""
    if isinstance(one, int) and isinstance(other, int):
        return one // other if other and one % other == 0 else None
    if one == other:
        return 1
    terms = {(): one} if isinstance(one, int) else dict(one.terms)
    divisor = (((), other),) if isinstance(other, int) else other.terms
    if len(divisor) != 1:
        return None
    ((atoms, by),) = divisor
    result = dict[Monomial, int]()
    for own, factor in terms.items():
        left = list(own)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if not by or factor % by:
            return None
        result[tuple(left)] = factor // by
    return _normal(result)


def floor_quotient(one: Size, other: Size) -> Size:
    """One // other, rounded down."""
    if isinstance(one, int) and isinstance(other, int) and other:
        return one // other
    exact = exact_quotient(one, other)
    if exact is not None:
        return exact
    signed = not (at_least(one, 0) and at_least(other, 0))
    return _alone(Atom("//", (one, other), f"({one!r})//({other!r})", signed=signed))


def remainder(one: Size, other: Size) -> Size:
    """One % other, with the divisor's sign."""
    if exact_quotient(one, other) is not None:
        return 0
    if isinstance(one, int) and isinstance(other, int) and other:
        return one % other
    return _alone(Atom("%", (one, other), f"({one!r})%({other!r})", signed=not at_least(other, 0)))


def larger(one: Size, other: Size) -> Size:
    """The greater of two."""
    return _extreme("max", one, other)


def smaller(one: Size, other: Size) -> Size:
    """The lesser of two."""
    return _extreme("min", one, other)


def broadcast(one: Size, other: Size) -> Size:
    """What two dims of operands that are broadcast together become: the same, or the one that is not 1."""
    if one == other or other == 1:
        return one
    if one == 1:
        return other
    for dim, partner in ((one, other), (other, one)):
        if isinstance(dim, int) and dim > 1:  # else the model could not run
            return dim
        if _is_capped(partner, dim):
            return dim
    first, second = sorted((one, other), key=repr)
    return _alone(Atom("broadcast", (first, second), f"broadcast({first!r}, {second!r})", signed=False))


def _is_capped(size: Size, cap: Size) -> bool:
    """Whether it is min(n, cap) for some n > 0: beside `cap` it either is that or is 1, and 1 only where it is that."""
    if isinstance(size, int) or len(size.terms) != 1 or size.terms[0][1] != 1 or len(size.terms[0][0]) != 1:
        return False
    (atom,) = size.terms[0][0]
    return atom.kind == "min" and cap in atom.args and any(isinstance(arg, int) and arg > 0 for arg in atom.args)


def at_least(size: Size, bound: int) -> bool:
    """Whether it is certainly no less than the bound; dims may be zero."""
    if isinstance(size, int):
        return size >= bound
    least = 0
    for atoms, factor in size.terms:
        if not atoms:
            least += factor
        elif factor < 0 or any(atom.signed for atom in atoms):
            return False
    return least >= bound


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


def value_of(size: Size, sizes: Mapping[str, int]) -> int:
    """The number it comes to when the named dims have these sizes."""
    if isinstance(size, int):
        return size
    return sum(factor * math.prod(_atom_value(atom, sizes) for atom in atoms) for atoms, factor in size.terms)


_VALUES: Mapping[str, Callable[[int, int], int]] = {
    "//": lambda one, other: one // other,
    "%": lambda one, other: one % other,
    "max": max,
    "min": min,
    "broadcast": lambda one, other: other if one == 1 else one,
}


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if not atom.args:
        return sizes[atom.key]
    one, other = (value_of(arg, sizes) for arg in atom.args)
    return _VALUES[atom.kind](one, other)


def _extreme(kind: str, one: Size, other: Size) -> Size:
    order = less(one, other)
    if order is not None:
        return other if order == (kind == "max") else one
    if less(other, one) is False:  # one <= other
        return other if kind == "max" else one
    first, second = sorted((one, other), key=repr)
    enough = any if kind == "max" else all
    signed = not enough(at_least(size, 0) for size in (one, other))
    return _alone(Atom(kind, (first, second), f"{kind}({first!r}, {second!r})", signed=signed))


def _alone(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def _normal(terms: Mapping[Monomial, int]) -> Size:
    kept = sorted((atoms, factor) for atoms, factor in terms.items() if factor)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(kept))
