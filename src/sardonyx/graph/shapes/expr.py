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


class Atom(str):
    """Something that is multiplied and added as a whole: a named dim, an unknown, a quotient, a maximum.

    It is the text that tells it from all others, so that ordering and comparing are the interpreter's own.
    """

    __slots__ = ("args", "is_vague", "kind", "least")
    args: tuple[Size, ...]
    is_vague: bool
    kind: str
    least: int | None  # it is never below; None where it may be anything

    def __new__(cls, key: str, kind: str, args: tuple[Size, ...] = (), least: int | None = 0) -> Atom:
        """`kind` says what it is made of `args`."""
        atom = super().__new__(cls, key)
        atom.kind, atom.args, atom.least = kind, args, least
        atom.is_vague = kind == "unknown" or any(isinstance(arg, Expr) and arg.is_vague for arg in args)
        return atom


Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial that is no plain number; made by the functions below, which give an int where they can."""

    __slots__ = ("is_vague", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """`terms` in their one order, without zeros."""
        self.terms: Final = terms
        is_vague = False
        for atoms, _ in terms:
            for atom in atoms:
                is_vague = is_vague or atom.is_vague
        self.is_vague: Final = is_vague

    def __eq__(self, other: object) -> bool:
        """Term by term."""
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __hash__(self) -> int:
        """Of the terms."""
        return hash(self.terms)

    def __repr__(self) -> str:
        """As a person would write it."""
        return " + ".join("*".join([*([str(factor)] if factor != 1 or not atoms else []), *atoms])
                          for atoms, factor in self.terms)  # fmt: skip


Size = int | Expr


def symbol(name: str) -> Expr:
    """A dim by its name."""
    return _alone(Atom(name if name.isidentifier() else repr(name), "name"))  # no name can pass for an expression


def unknown(serial: int) -> Expr:
    """A dim of which nothing is known but that it is the same as itself."""
    return _alone(Atom(f"?{serial}", "unknown"))


def declared(size: Size) -> int | str | None:
    """How a file says it: a number, a name, or nothing, since a formula is no name."""
    if isinstance(size, int):
        return size
    atom = _only_atom(size)
    if atom is None or atom.kind != "name":
        return None
    return str(atom) if atom.isidentifier() else cast("str", ast.literal_eval(atom))


# Sums and products


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
    plain: int = 1
    rest: Size = 1
    for size in sizes:
        if isinstance(size, int):
            plain *= size
        else:
            rest = multiply(rest, size)
    return plain if isinstance(rest, int) else multiply(rest, plain)


# Quotients


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
    return None if left else _normal(result)


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


def floor_quotient(one: Size, other: Size) -> Size:
    """One // other, rounded down."""
    if isinstance(one, int) and isinstance(other, int) and other:
        return one // other
    exact = exact_quotient(one, other)
    if exact is not None:
        return exact
    if isinstance(one, Expr) and isinstance(other, int) and other > 0:
        whole, rest = _divided(one, other)
        return add(whole, _quotient(rest, other)) if isinstance(rest, Expr) else add(whole, rest // other)
    return _quotient(one, other)


def _divided(one: Expr, by: int) -> tuple[Size, Size]:
    """The part that `by` divides certainly, divided, and the rest."""
    whole, rest = dict[Monomial, int](), dict[Monomial, int]()
    for atoms, factor in one.terms:
        times, left = divmod(factor, by) if not atoms or factor > 0 or factor % by == 0 else (0, factor)
        whole[atoms], rest[atoms] = times, left
    return _normal(whole), _normal(rest)


def _quotient(one: Size, other: Size) -> Size:
    if isinstance(one, Expr) and isinstance(other, int) and other > 0:
        shared = math.gcd(other, *(factor for atoms, factor in one.terms if atoms))
        if shared > 1:  # (2n + 1) // 4 is n // 2
            one, other = _normal({atoms: factor // shared for atoms, factor in one.terms}), other // shared
            return floor_quotient(one, other)
        inner = _only_atom(one)
        if inner is not None and inner.kind == "//" and isinstance(inner.args[1], int) and inner.args[1] > 0:
            return floor_quotient(inner.args[0], inner.args[1] * other)
    least = 0 if at_least(one, 0) and at_least(other, 0) else None
    return _alone(Atom(f"({one!r})//({other!r})", "//", (one, other), least))


def remainder(one: Size, other: Size) -> Size:
    """One % other, with the divisor's sign."""
    if exact_quotient(one, other) is not None:
        return 0
    if isinstance(other, int) and other > 0:
        one = one % other if isinstance(one, int) else _normal({atoms: factor % other for atoms, factor in one.terms})
        if isinstance(one, int):
            return one % other
    return _alone(Atom(f"({one!r})%({other!r})", "%", (one, other), 0 if at_least(other, 0) else None))


# Choices


def larger(one: Size, other: Size) -> Size:
    """The greater of two."""
    return _extreme("max", one, other)


def smaller(one: Size, other: Size) -> Size:
    """The lesser of two."""
    return _extreme("min", one, other)


def _extreme(kind: str, one: Size, other: Size) -> Size:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other) if kind == "max" else min(one, other)
    order = less(one, other)
    if order is not None:
        return other if order == (kind == "max") else one
    if less(other, one) is False:  # one <= other
        return other if kind == "max" else one
    for size, partner in ((one, other), (other, one)):
        atom = _only_atom(size)
        if atom is not None and partner in atom.args and atom.kind in ("max", "min"):
            return size if atom.kind == kind else partner
    first, second = sorted((one, other), key=repr)
    bounds = [lower for size in (one, other) if (lower := lower_bound(size)) is not None]
    least = (max(bounds) if bounds else None) if kind == "max" else (min(bounds) if len(bounds) == 2 else None)
    return _alone(Atom(f"{kind}({first!r}, {second!r})", kind, (first, second), least))


def broadcast(one: Size, other: Size) -> Size:
    """What two dims of operands that are broadcast together become: the same, or the one that is not 1."""
    if one == other or other == 1:
        return one
    if one == 1:
        return other
    for dim, partner in ((one, other), (other, one)):
        if isinstance(dim, int) and dim > 1:  # else the model could not run
            return dim
        if at_least(dim, 2) or _is_capped(partner, dim):
            return dim
        atom = _only_atom(partner)
        if atom is not None and atom.kind == "broadcast" and dim in atom.args:
            return partner
    first, second = sorted((one, other), key=repr)
    return _alone(Atom(f"broadcast({first!r}, {second!r})", "broadcast", (first, second)))


def _is_capped(size: Size, cap: Size) -> bool:
    """Whether it is min(n, cap) for some n > 0: beside `cap` it either is that or is 1, and 1 only where it is that."""
    atom = _only_atom(size)
    if atom is None or atom.kind != "min":
        return False
    return cap in atom.args and any(isinstance(arg, int) and arg > 0 for arg in atom.args)


# What is certain


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
    least = lower_bound(size)
    if least is not None and least >= bound:
        return True
    return isinstance(size, Expr) and any(at_least(simpler, bound) for simpler in _below(size))


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
        return sizes[atom]
    one, other = (value_of(arg, sizes) for arg in atom.args)
    return _VALUES[atom.kind](one, other)


def _only_atom(size: Size) -> Atom | None:
    """The atom that is all there is to it."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    ((atoms, factor),) = size.terms
    return atoms[0] if factor == 1 and len(atoms) == 1 else None


def _alone(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def _normal(terms: Mapping[Monomial, int]) -> Size:
    kept = sorted((atoms, factor) for atoms, factor in terms.items() if factor)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(kept))
