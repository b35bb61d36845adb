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
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

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
    total_bound = 0
    for atoms, factor in size.terms:
        bits = max((atom.bits * count for atom, count in Counter(atoms).items()), default=0)
        total_bound += abs(factor) << bits
    return total_bound


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
    if len(one.terms) * len(other.terms) > _MAX_TERMS:  # a new unknown takes the place of what would be too large
        least = 0 if at_least(one, 0) and at_least(other, 0) else None
        return alone(Atom(f"?large{next(_SERIALS)}", "unknown", (), least))
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
    if not isinstance(one, Expr) or not isinstance(other, int) or other <= 0:
        return _quotient(one, other)
    whole, rest = dict[Monomial, int](), dict[Monomial, int]()  # one == other * whole + rest
    for atoms, factor in one.terms:
        # a negative factor that `other` does not divide stays in the rest, or -n // 2 would become n // 2 - n
        is_divided = not atoms or factor > 0 or factor % other == 0
        whole[atoms], rest[atoms] = divmod(factor, other) if is_divided else (0, factor)
    remaining = normal(rest)
    return add(normal(whole), remaining // other if isinstance(remaining, int) else _quotient(remaining, other))


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

    def replacement(atom: Atom) -> Size:
        if atom in values or not atom.args:
            return values.get(atom, alone(atom))
        one, other = (replaced(arg, values) for arg in atom.args)
        return _KINDS[atom.kind][0](one, other)

    return total(multiply(product(map(replacement, atoms)), factor) for atoms, factor in size.terms)


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


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if not atom.args:
        return sizes[atom]
    one, other = (value_of(arg, sizes) for arg in atom.args)
    return _KINDS[atom.kind][1](one, other)


# Kinds of atoms with operands: how they are created, and their numbers.
_KINDS: Mapping[str, tuple[Callable[[Size, Size], Size], Callable[[int, int], int]]] = {
    "//": (floor_quotient, lambda one, other: one // other),
    "%": (remainder, lambda one, other: one % other),
    "max": (larger, max),
    "min": (smaller, min),
    "broadcast": (broadcast, lambda one, other: other if one == 1 else one),
    "or": (copied_if_zero, lambda one, other: one or other),
}
