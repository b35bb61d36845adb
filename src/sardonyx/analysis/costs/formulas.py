"""A size as a person writes it: `12·batch·seq² + 3072·batch·seq`."""

from __future__ import annotations

from itertools import groupby

from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.polynomials import Monomial

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def written(size: Size) -> str:
    """Highest powers first."""
    if isinstance(size, int):
        return str(size)
    terms = sorted(size.terms, key=lambda term: (-len(term[0]), term[0]))
    text = " + ".join(_term(atoms, factor) for atoms, factor in terms)
    return text.replace("+ -", "− ")


def _term(atoms: Monomial, factor: int) -> str:
    parts = [str(factor)] if factor not in (1, -1) or not atoms else []
    for atom, same in groupby(atoms):
        power = len(list(same))
        base = str(atom) if not atom.args else f"({atom})"
        parts.append(base + (str(power).translate(_RAISED) if power > 1 else ""))
    return ("-" if factor == -1 and atoms else "") + "·".join(parts)
