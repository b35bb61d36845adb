"""What the generated inputs did not cover, in a line for each thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from sardonyx.proof.lengths import Bounds
from sardonyx.proof.masks import hides_whole_row
from sardonyx.proof.roles import Role, Use
from sardonyx.runtime import Array


def size_notes(sizes: Mapping[str, Set[int]], bounds: Mapping[str, Bounds]) -> list[str]:
    """Dims seen at one size only, or never as long as the numbers that the graph holds them against."""
    notes: list[str] = []
    for name, seen in sizes.items():
        if len(seen) < 2:
            notes.append(f"the dim '{name}' was tried at one size only: the reference accepted no other")
        longest, held = max(seen, default=0), bounds.get(name, Bounds())
        if held.limit is not None and longest < held.limit:
            notes.append(
                f"the dim '{name}' was tried up to {longest}; the graph has a table of {held.limit} rows for it"
            )
        beyond = [number for number in held.compared if number >= longest and number < (held.limit or number + 1)]
        if beyond:
            notes.append(f"the dim '{name}' was tried up to {longest}; the graph compares it with {beyond[-1]}")
    return notes


def value_notes(name: str, use: Use, arrays: Sequence[Array]) -> list[str]:
    """Numbers that the graph compares an input with and that no value reached, and masks without hidden rows."""
    if use.role in (Role.MASK, Role.ADDED_MASK):
        covered = any(hides_whole_row(array) for array in arrays) or all(array.ndim == 0 for array in arrays)
        return [] if covered else [f"no row of the mask '{name}' was hidden whole"]
    finite = [array[np.isfinite(array)] for array in arrays if use.thresholds and array.dtype.kind in "fiu"]
    numbers = np.concatenate([array.astype(np.float64).reshape(-1) for array in finite]) if finite else np.zeros(0)
    if not numbers.size:
        return []
    least, most = float(numbers.min()), float(numbers.max())
    beyond = [one.number for one in use.thresholds if one.number > most or one.number < least]
    if not beyond:
        return []
    listed = ", ".join(f"{number:g}" for number in beyond[:3])
    return [f"values up to {most:g} and down to {least:g} were tried for '{name}'; the graph compares it with {listed}"]
