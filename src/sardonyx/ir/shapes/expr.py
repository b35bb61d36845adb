"""Symbolic sizes: integer polynomials over named dimensions, in which everything else is an opaque atom.

A size is an `int` or an `Expr`, a sum of terms c * a1 * ... * ak with integer factors c. An atom is a named dimension,
an unknown, or one application of //, %, max, min, broadcast or "or" (see `copied_if_zero`). Invariants:

- `==` is sound but not complete: if a == b, both are the same number for every size of the model's inputs. Expressions
  that are not `==` may still be equal; `equal` returns False only if they differ for every size.
- A named dimension may be 0: only n >= 0 is known about it, not n >= 1.
- Every function returns a sound result: wherever the model runs, `value_of` of the result is what the same operation
  gives on the values of its arguments.
- Divisions are only built where a zero divisor is an error of the model itself, so common factors may be cancelled.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    "copied_size",
    "declared",
    "equal",
    "exact_quotient",
    "floor_quotient",
    "larger",
    "less",
    "lower_bound",
    "magnitude",
    "multiply",
    "names_in",
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
    """Return the dimension with this name."""
    return alone(Atom(name if name.isidentifier() else repr(name), "name"))  # so that no name is read as an expression


def unknown(serial: int) -> Expr:
    """Return a dimension about which nothing is known except that it equals itself."""
    return alone(Atom(f"?{serial}", "unknown"))


def declared(size: Size) -> int | str | None:
    """Return the size as an ONNX file can declare it: a number, a name, or None for a formula."""
    if isinstance(size, int):
        return size
    atom = only_atom(size)
    if atom is None or atom.kind != "name":
        return None
    return str(atom) if atom.isidentifier() else cast("str", ast.literal_eval(atom))


def floor_quotient(one: Size, other: Size) -> Size:
    """Return one // other, rounded towards negative infinity.

    For an integer divisor d > 0, terms are moved out of the quotient by (d * w + r) // d == w + r // d.
    """
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
    """Return (whole, rest) with one == by * whole + rest.

    A negative factor that `by` does not divide stays in the rest: dividing it would turn -n // 2 into n // 2 - n.
    """
    whole, rest = dict[Monomial, int](), dict[Monomial, int]()
    for atoms, factor in one.terms:
        quotient, remaining = divmod(factor, by) if not atoms or factor > 0 or factor % by == 0 else (0, factor)
        whole[atoms], rest[atoms] = quotient, remaining
    return normal(whole), normal(rest)


def _quotient(one: Size, other: Size) -> Size:
    """Return one // other as an atom, after these simplifications for integers d, g, a, b > 0.

    (g * x + r) // (g * d) == (x + r // g) // d, where r is a constant; and (x // a) // b == x // (a * b).
    """
    if isinstance(one, Expr) and isinstance(other, int) and other > 0:
        shared = math.gcd(other, *(factor for atoms, factor in one.terms if atoms))
        if shared > 1:  # (2n + 1) // 4 == n // 2
            one, other = normal({atoms: factor // shared for atoms, factor in one.terms}), other // shared
            return floor_quotient(one, other)
        inner = only_atom(one)
        if inner is not None and inner.kind == "//" and isinstance(inner.args[1], int) and inner.args[1] > 0:
            return floor_quotient(inner.args[0], inner.args[1] * other)
    least = 0 if at_least(one, 0) and at_least(other, 0) else None
    return alone(Atom(f"({one!r})//({other!r})", "//", (one, other), least))


def remainder(one: Size, other: Size) -> Size:
    """Return one % other, with the sign of the divisor.

    For an integer divisor d > 0 the factors are reduced first: (c * x) % d == ((c % d) * x) % d.
    """
    if exact_quotient(one, other) is not None:
        return 0
    if isinstance(other, int) and other > 0:
        one = one % other if isinstance(one, int) else normal({atoms: factor % other for atoms, factor in one.terms})
        if isinstance(one, int):
            return one % other
    return alone(Atom(f"({one!r})%({other!r})", "%", (one, other), 0 if at_least(other, 0) else None))


def larger(one: Size, other: Size) -> Size:
    """Return the maximum of two sizes."""
    return _extreme("max", one, other)


def smaller(one: Size, other: Size) -> Size:
    """Return the minimum of two sizes."""
    return _extreme("min", one, other)


def _extreme(kind: str, one: Size, other: Size) -> Size:
    """Return one of the operands if it is the maximum (minimum) for every size, otherwise an atom.

    Uses max(x, max(x, y)) == max(x, y), max(x, min(x, y)) == x, and the same with max and min exchanged.
    """
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
    """Return `size` without an operand of its maximum (minimum) that `partner` covers, or None if there is none.

    max(max(a, b) + c, d) == max(a + c, d) if b + c <= d; min(min(a, b) + c, d) == min(a + c, d) if b + c >= d.
    """
    for atoms, factor in size.terms if isinstance(size, Expr) else ():
        if factor != 1 or len(atoms) != 1 or atoms[0].kind != kind:
            continue
        rest = subtract(size, alone(atoms[0]))
        one, other = atoms[0].args
        for part, remaining in ((one, other), (other, one)):
            shifted = add(rest, part)
            is_covered = less(partner, shifted) is False if kind == "max" else less(shifted, partner) is False
            if is_covered:
                return add(rest, remaining)
    return None


def copied_if_zero(size: Size, copied: Size) -> Size:
    """Return `size`, or `copied` where `size` is 0, which is how Reshape reads a dimension of its target.

    The result is the atom "size or copied" unless one of the two is certain: `size` is never 0, both are equal, or
    `copied` is 0 wherever `size` is.
    """
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
    """Return whether `size` is certainly 0 wherever `other` is 0."""
    if exact_quotient(size, other) is not None:
        return True
    atom = only_atom(size)
    if atom is not None and atom.kind == "or":
        return all(_vanishes_with(arg, other) for arg in atom.args)
    if len(other.terms) != 1:
        return False
    ((atoms, _),) = other.terms  # a product is 0 if and only if one of its factors is
    return all(exact_quotient(size, alone(factor)) is not None for factor in atoms)


def copied_size(dim: Size) -> Atom | None:
    """Return the atom that `dim` consists of if it is "size or copied" with copied >= 2, otherwise None.

    Broadcasting `size` with `dim` then fails where size == 0 (0 does not fit copied >= 2), so that dim == size in every
    run that completes.
    """
    atom = only_atom(dim)
    return atom if atom is not None and atom.kind == "or" and at_least(atom.args[1], 2) else None


def replaced(size: Size, values: Mapping[Atom, Size]) -> Size:
    """Return the size with the given sizes in place of some atoms, at any depth."""
    if isinstance(size, int):
        return size
    return total(multiply(product(_replaced_atom(atom, values) for atom in atoms), by) for atoms, by in size.terms)


def _replaced_atom(atom: Atom, values: Mapping[Atom, Size]) -> Size:
    if atom in values:
        return values[atom]
    if not atom.args:
        return alone(atom)
    one, other = (replaced(arg, values) for arg in atom.args)
    return _CONSTRUCTORS[atom.kind](one, other)


def broadcast(one: Size, other: Size) -> Size:
    """Return the dimension that two broadcast dimensions result in: the common one, or the one that is not 1.

    Assumes that the model runs: the two are equal or one of them is 1. A dimension that is at least 2 is therefore the
    result.
    """
    if one == other or other == 1:
        return one
    if one == 1:
        return other
    for dim, partner in ((one, other), (other, one)):
        if isinstance(dim, int) and dim > 1:  # otherwise the model could not run
            return dim
        if at_least(dim, 2) or _is_capped(partner, dim):
            return dim
        atom = only_atom(partner)
        if atom is not None and atom.kind == "broadcast" and dim in atom.args:
            return partner
        if atom is not None and atom.kind == "or" and dim == atom.args[0]:
            return dim  # where dim is 0, the other can only be 0 or 1, and the result is 0
    first, second = sorted((one, other), key=repr)
    return alone(Atom(f"broadcast({first!r}, {second!r})", "broadcast", (first, second)))


def _is_capped(size: Size, cap: Size) -> bool:
    """Return whether the size is min(n, cap) with an integer n > 0, so that broadcasting it with `cap` gives `cap`.

    In a run that completes it equals `cap` or one of the two is 1; if min(n, cap) is 1 the result is `cap`, and if
    `cap` is 1 then min(n, cap) is 1 too.
    """
    atom = only_atom(size)
    if atom is None or atom.kind != "min":
        return False
    return cap in atom.args and any(isinstance(arg, int) and arg > 0 for arg in atom.args)


def names_in(sizes: Iterable[Size | None]) -> Iterator[str]:
    """Yield the names of the dimensions that sizes are computed from; unknown dimensions have names too."""
    for size in sizes:
        if isinstance(size, Expr):
            for atoms, _ in size.terms:
                for atom in atoms:
                    yield from names_in(atom.args) if atom.args else (str(atom),)


def value_of(size: Size, sizes: Mapping[str, int]) -> int:
    """Return the number that the size is for these sizes of the named dimensions."""
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


_CONSTRUCTORS: Mapping[str, Callable[[Size, Size], Size]] = {
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
