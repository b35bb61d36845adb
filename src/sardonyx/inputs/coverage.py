"""Report what the inputs of the trials did not cover: sizes, thresholds, rows and masks that were not reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from sardonyx.inputs.requirements import Bounds
from sardonyx.inputs.roles import Role, Use
from sardonyx.inputs.values import has_row_of_zeros, hides_whole_row
from sardonyx.runtime import Array

_NAMED = 6  # dimensions named in one note


def reduced_note(trials: Sequence[Mapping[str, int]]) -> str:
    """Return the note about sizes that were chosen smaller than usual, from the sizes of all trials."""
    filled = [dims for dims in trials if 0 not in dims.values()]
    names = list(dict.fromkeys(name for dims in filled for name in dims))
    largest = ", ".join(f"{name} ≤ {max(dims[name] for dims in filled)}" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"only small sizes were tried ({largest}{more}): the usual ones exceed the limit on elements"


def size_notes(sizes: Mapping[str, Set[int]], bounds: Mapping[str, Bounds], *, reduced: bool = False) -> list[str]:
    """Return a note for each dimension tried at one size only, or never beyond a number the graph compares it with."""
    notes: list[str] = []
    for name, tried in sizes.items():
        if len(tried) < 2:
            why = "others exceed the limit on elements" if reduced else "the reference accepted no other"
            notes.append(f"the dimension '{name}' was tried at one size only: {why}")
        longest, bound = max(tried, default=0), bounds.get(name, Bounds())
        if bound.limit is not None and longest < bound.limit:
            notes.append(
                f"the dimension '{name}' was tried up to {longest}; the graph has a table of {bound.limit} rows for it"
            )
        beyond = [number for number in bound.compared if number >= longest and number < (bound.limit or number + 1)]
        if beyond:
            notes.append(f"the dimension '{name}' was tried up to {longest}; the graph compares it with {beyond[-1]}")
    return notes


def value_notes(name: str, use: Use, arrays: Sequence[Array]) -> list[str]:
    """Return notes about thresholds that no value of an input reached, and rows that were never zero or masked."""
    if use.role in (Role.MASK, Role.ADDED_MASK):
        hidden = any(hides_whole_row(array, inverted=use.inverted) for array in arrays)
        covered = hidden or all(array.ndim == 0 for array in arrays)
        return [] if covered else [f"no row of the mask '{name}' was masked entirely"]
    notes: list[str] = []
    if use.normalized and not any(has_row_of_zeros(array) for array in arrays):
        notes.append(f"no row of zeros was tried for '{name}', which the graph normalizes")
    finite = [array[np.isfinite(array)] for array in arrays if use.thresholds and array.dtype.kind in "fiu"]
    numbers = np.concatenate([array.astype(np.float64).reshape(-1) for array in finite]) if finite else np.zeros(0)
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    beyond = [threshold.number for threshold in use.thresholds if not least <= threshold.number <= most]
    if numbers.size and beyond:
        listed = ", ".join(f"{number:g}" for number in beyond[:3])
        notes.append(f"values from {least:g} to {most:g} were tried for '{name}'; the graph compares it with {listed}")
    return notes


def table_notes(uses: Mapping[str, Use], arrays: Mapping[str, Sequence[Array]]) -> list[str]:
    """Return a note about tables of which not all rows were looked up, the one with the most left out as an example."""
    gaps: list[tuple[int, str]] = []
    for name, use in uses.items():
        if use.table and isinstance(use.rows, int):
            looked_up = len(np.unique(np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays[name])])))
            text = f"'{name}' looked up {looked_up} of {use.rows} rows of '{use.table}'"
            gaps += [(use.rows - looked_up, text)] if looked_up < use.rows else []
    if not gaps:
        return []
    _, text = max(gaps)
    return [text + (f" (and {len(gaps) - 1} more of this kind)" if len(gaps) > 1 else "")]
