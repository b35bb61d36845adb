"""Sizes as integer expressions: sums of products of named dims, with what cannot be simplified kept as an atom.

Two expressions are equal only where they are the same number for every size the model may be run with, so `==` is a
proof. The reverse does not hold: what cannot be shown to be equal is merely not known. Divisions are only asked where a
zero divisor is an error of the model itself, so that what cancels may be cancelled.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import cast

from sardonyx.ir.shapes.polynomials import (
    Atom,
    Expr,
    Monomial,
    Size,
    add,
    alone,
    at_least,
    equal,
    exact_quotient,
    less,
    lower_bound,
    magnitude,
    multiply,
    normal,
    only_atom,
    product,
    subtract,
    total,
    weight,
)

__all__ = [
    "Atom",
    "Expr",
    "Size",
    "add",
    "at_least",
    "broadcast",
    "copied_if_zero",
    "copied_instead_of",
    "declared",
    "equal",
    "exact_quotient",
    "floor_quotient",
    "larger",
    "less",
    "lower_bound",
    "magnitude",
    "multiply",
    "product",
    "remainder",
    "replaced",
    "smaller",
    "subtract",
    "symbol",
    "total",
    "unknown",
    "value_of",
    "weight",
]


def symbol(name: str) -> Expr:
    """A dim by its name."""
    return alone(Atom(name if name.isidentifier() else repr(name), "name"))  # no name can pass for an expression


def unknown(serial: int) -> Expr:
    """A dim of which nothing is known but that it is the same as itself."""
    return alone(Atom(f"?{serial}", "unknown"))


def declared(size: Size) -> int | str | None:
    """How a file says it: a number, a name, or nothing, since a formula is no name."""
    if isinstance(size, int):
        return size
    atom = only_atom(size)
    if atom is None or atom.kind != "name":
        return None
    return str(atom) if atom.isidentifier() else cast("str", ast.literal_eval(atom))


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
    return normal(whole), normal(rest)


def _quotient(one: Size, other: Size) -> Size:
    if isinstance(one, Expr) and isinstance(other, int) and other > 0:
        shared = math.gcd(other, *(factor for atoms, factor in one.terms if atoms))
        if shared > 1:  # (2n + 1) // 4 is n // 2
            one, other = normal({atoms: factor // shared for atoms, factor in one.terms}), other // shared
            return floor_quotient(one, other)
        inner = only_atom(one)
        if inner is not None and inner.kind == "//" and isinstance(inner.args[1], int) and inner.args[1] > 0:
            return floor_quotient(inner.args[0], inner.args[1] * other)
    least = 0 if at_least(one, 0) and at_least(other, 0) else None
    return alone(Atom(f"({one!r})//({other!r})", "//", (one, other), least))


def remainder(one: Size, other: Size) -> Size:
    """One % other, with the divisor's sign."""
    if exact_quotient(one, other) is not None:
        return 0
    if isinstance(other, int) and other > 0:
        one = one % other if isinstance(one, int) else normal({atoms: factor % other for atoms, factor in one.terms})
        if isinstance(one, int):
            return one % other
    return alone(Atom(f"({one!r})%({other!r})", "%", (one, other), 0 if at_least(other, 0) else None))


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
        atom = only_atom(size)
        if atom is not None and partner in atom.args and atom.kind in ("max", "min"):
            return size if atom.kind == kind else partner
        simpler = _without_covered(kind, size, partner)
        if simpler is not None:
            return _extreme(kind, simpler, partner)
    first, second = sorted((one, other), key=repr)
    bounds = [lower for size in (one, other) if (lower := lower_bound(size)) is not None]
    least = (max(bounds) if bounds else None) if kind == "max" else (min(bounds) if len(bounds) == 2 else None)
    return alone(Atom(f"{kind}({first!r}, {second!r})", kind, (first, second), least))


def _without_covered(kind: str, size: Size, partner: Size) -> Size | None:
    """max(a, b) + c beside d is a + c where b + c <= d, whatever a is; likewise for min."""
    for atoms, factor in size.terms if isinstance(size, Expr) else ():
        if factor != 1 or len(atoms) != 1 or atoms[0].kind != kind:
            continue
        rest = subtract(size, alone(atoms[0]))
        one, other = atoms[0].args
        for part, left in ((one, other), (other, one)):
            moved = add(rest, part)
            is_covered = less(partner, moved) is False if kind == "max" else less(moved, partner) is False
            if is_covered:
                return add(rest, left)
    return None


def copied_if_zero(size: Size, copied: Size) -> Size:
    """The size, or `copied` where the size is zero: how a Reshape reads its target."""
    if isinstance(size, int):
        return size or copied
    if size == copied or at_least(size, 1) or _vanishes_with(copied, size):
        return size
    inner = only_atom(copied)
    if inner is not None and inner.kind == "or" and inner.args[0] == size:
        return copied
    least = lower_bound(copied)
    least = min(least, 1) if least is not None and at_least(size, 0) else None
    return alone(Atom(f"({size!r} or {copied!r})", "or", (size, copied), least))


def _vanishes_with(size: Size, other: Expr) -> bool:
    """Whether one is certainly zero wherever the other is."""
    if exact_quotient(size, other) is not None:
        return True
    atom = only_atom(size)
    if atom is not None and atom.kind == "or":
        return all(_vanishes_with(arg, other) for arg in atom.args)
    if len(other.terms) != 1:
        return False
    ((atoms, _),) = other.terms  # a product is zero where any of its factors is
    return all(exact_quotient(size, alone(factor)) is not None for factor in atoms)


def copied_instead_of(size: Size, partner: Size) -> Atom | None:
    """The atom that `partner` is, where it is `size` or, if that is zero, something that does not fit beside zero."""
    atom = only_atom(partner)
    if atom is None or atom.kind != "or" or atom.args[0] != size or not at_least(atom.args[1], 2):
        return None
    return atom


def replaced(size: Size, known: Mapping[Atom, Size]) -> Size:
    """The size with other sizes for some of its atoms, however deep inside they are."""
    if isinstance(size, int):
        return size
    return total(multiply(product(_replaced_atom(atom, known) for atom in atoms), by) for atoms, by in size.terms)


def _replaced_atom(atom: Atom, known: Mapping[Atom, Size]) -> Size:
    if atom in known:
        return known[atom]
    if not atom.args:
        return alone(atom)
    one, other = (replaced(arg, known) for arg in atom.args)
    return _MAKERS[atom.kind](one, other)


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
        atom = only_atom(partner)
        if atom is not None and atom.kind == "broadcast" and dim in atom.args:
            return partner
        if atom is not None and atom.kind == "or" and dim == atom.args[0]:
            return dim  # where it is zero, only 0 and 1 fit it
    first, second = sorted((one, other), key=repr)
    return alone(Atom(f"broadcast({first!r}, {second!r})", "broadcast", (first, second)))


def _is_capped(size: Size, cap: Size) -> bool:
    """Whether it is min(n, cap) for some n > 0: beside `cap` it either is that or is 1, and 1 only where it is that."""
    atom = only_atom(size)
    if atom is None or atom.kind != "min":
        return False
    return cap in atom.args and any(isinstance(arg, int) and arg > 0 for arg in atom.args)


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
    "or": lambda one, other: one or other,
}


_MAKERS: Mapping[str, Callable[[Size, Size], Size]] = {
    "//": floor_quotient,
    "%": remainder,
    "max": larger,
    "min": smaller,
    "broadcast": broadcast,
    "or": copied_if_zero,
}


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if not atom.args:
        return sizes[atom]
    one, other = (value_of(arg, sizes) for arg in atom.args)
    return _VALUES[atom.kind](one, other)
