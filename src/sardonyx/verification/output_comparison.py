"""Compare the outputs of two models, output by output, and keep the worst difference of every output.

Float outputs are compared by the rules of `deviation`. If a rule is violated, the noise of the reference is measured:
how far its outputs move when every rounding is disturbed. Discrete outputs must be equal, except elements that the same
noise, or the order of equal scores, also changes.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.records.run import Accuracy, OutputDifference
from sardonyx.runtime import Array, Value
from sardonyx.verification.deviation import NOISE_FACTOR, Deviation, Excess, Moves, Place, gap
from sardonyx.verification.padding import Padding
from sardonyx.verification.ties import Ties
from sardonyx.verification.tolerance import Difference, Limit, epsilon, float_difference, is_float, limit


class Reason(StrEnum):
    """Why elements were not compared."""

    PADDING = "positions of '{name}' are padding that sees no key"
    POOLED = "items of '{name}' are pooled from padding that sees no key"
    TIE = "elements of '{name}' depend on the order of equal scores"


class LeftOut:
    """The number of elements that were not compared in all trials, by reason and output."""

    def __init__(self) -> None:
        self._counts: dict[Reason, dict[str, tuple[int, int]]] = defaultdict(dict)

    def add(self, why: Reason, name: str, count: int, total: int) -> None:
        """Add the elements of an output that were not compared in one trial, and their total."""
        before = self._counts[why].get(name, (0, 0))
        self._counts[why][name] = (before[0] + count, before[1] + total)

    @property
    def lines(self) -> list[str]:
        """One line for each reason: the numbers of the first output, and how many more outputs there are."""
        lines: list[str] = []
        for why, outputs in self._counts.items():
            (name, (count, total)), *others = outputs.items()
            rest = f", nor in {len(others)} other output{'s' if len(others) > 1 else ''}" if others else ""
            lines.append(f"{count} of {total} {why.format(name=name)}: not compared{rest}")
        return lines


_SAMPLES = (2, 4, 8, 16)  # numbers of noise samples; the first that explains every element ends the search
_TIE_SAMPLES = 16  # enough to see a tie, which falls to either side with about even odds, fall to both
_HOPELESS = 50.0  # an error of this many times the limit after four samples: more samples do not explain it
_LOUD, _LOUD_SHARE = 0.05, 0.1  # a noise limit of five percent in a tenth of the elements is worth a note

_NO_TIES = Ties()
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_SINGLE_EPS = 2.0**-23
Path: TypeAlias = tuple[int, ...]


class Noise:
    """The reference's outputs in one trial, and its outputs when every rounding is disturbed."""

    def __init__(
        self, clean: Sequence[Value], disturb: Callable[[int], Sequence[Value]], *, most: int = _SAMPLES[-1]
    ) -> None:
        """Measure the noise of the outputs `clean`.

        Args:
            clean: The undisturbed outputs.
            disturb: Returns the outputs for one sample of disturbed roundings.
            most: The largest number of samples.
        """
        self._clean = clean
        self._disturb = disturb
        self._most = most
        self._samples: list[Sequence[Value]] = []

    @property
    def steps(self) -> list[int]:
        """The numbers of samples to use in turn."""
        return [count for count in _SAMPLES if count <= self._most] or [self._most]

    def moves(self, path: Path, count: int) -> Moves | None:
        """Return how far each element of a float output moves, or None if no sample has the shape of the output."""
        pairs = self._pairs(path, count)
        if not pairs:
            return None
        largest = gap(*pairs[0])
        square = np.square(largest, dtype=np.float64)
        for pair in pairs[1:]:
            moved = gap(*pair)
            np.maximum(largest, moved, out=largest)
            square += np.square(moved, dtype=np.float64)
        return Moves(largest, square / len(pairs))

    def undecided(self, path: Path) -> Array | None:
        """Return which elements of a discrete output change in some sample, or None if no sample has its shape."""
        changes = [np.asarray(pair[0] != pair[1]) for pair in self._pairs(path, min(_TIE_SAMPLES, self._most))]
        return np.logical_or.reduce(changes) if changes else None

    def _pairs(self, path: Path, count: int) -> list[tuple[Array, Array]]:
        """Return the clean and disturbed values of one tensor for every sample in which the shapes agree."""
        while len(self._samples) < count:
            self._samples.append(self._disturb(len(self._samples)))
        clean = _descend(self._clean, path)
        if clean is None:
            return []
        arrays = [_descend(sample, path) for sample in self._samples[:count]]
        return [(clean, array) for array in arrays if array is not None and array.shape == clean.shape]


NoiseSource: TypeAlias = Callable[[], Noise | None]
# Of eps, by which kernels may differ if double precision shows that they agree, or exact arithmetic; narrow types have
# few digits to lose, and the runtime computes their sums in single precision.
_ROUNDINGS, _NARROW_ROUNDINGS = 2.0**10, 2.0**4
Exact: TypeAlias = Callable[[], tuple[Sequence[Value], Sequence[Value]] | None]


class _Worst(Struct):
    """The worst differences of one output so far."""

    dtype: str = ""
    difference: Difference = field(default_factory=Difference)
    rtol: float = 0.0
    atol: float = 0.0
    place: Place | None = None
    passed: bool = True


class OutputComparer:
    """Compares outputs within one accuracy class; random outputs by type and shape only."""

    def __init__(
        self,
        names: Sequence[str],
        accuracy: Accuracy,
        random: frozenset[str],
        *,
        exported: bool = False,
        proven: bool = False,
    ) -> None:
        """Compare outputs with these names.

        Args:
            names: The names of the outputs.
            accuracy: The loosest class of the rewrites between the two models.
            random: Names of the outputs that depend on random operators.
            exported: Whether the reference is the module that the graph was exported from.
            proven: Whether exact arithmetic found all rewrites between the two models to be equal, so that only kernels
                and their roundings can differ.
        """
        self._exported, self.proven = exported, proven
        self._names = list(names)
        self._accuracy = accuracy
        self._random = random
        self._worst = [_Worst() for _ in names]
        self._hides_rows = False
        self._padding: Sequence[Padding | None] = ()
        self._ties = _NO_TIES
        self._exact: Exact = lambda: None
        self.inexact = False  # whether some float output was not equal bit for bit
        self.notes: list[str] = []
        self.left_out = LeftOut()

    def fresh(self) -> OutputComparer:
        """Return a comparer for the same outputs and rules, without results."""
        return OutputComparer(self._names, self._accuracy, self._random, exported=self._exported, proven=self.proven)

    def compare(
        self,
        reference: Sequence[Value],
        results: Sequence[Value],
        noise: NoiseSource,
        *,
        hides_rows: bool = False,
        padding: Sequence[Padding | None] = (),
        ties: Ties = _NO_TIES,
        exact: Exact = lambda: None,
        is_as_close: Callable[[], bool | None] = lambda: None,
    ) -> list[str]:
        """Return one line for every output that differs by more than is allowed.

        Args:
            reference: The outputs of the reference.
            results: The outputs of the other model for the same inputs.
            noise: Measures the noise of the reference; called only if it can change the result.
            hides_rows: Whether a mask in these inputs hides whole rows: a row that is NaN throughout in the reference
                may then hold numbers in the result.
            padding: Per output the positions that are not compared; empty if all are.
            ties: What the reference chose by score; evaluated only if outputs differ.
            exact: Returns the outputs of both computed in double precision, or None; called only if outputs differ.
                If these agree by the same rules, the difference is rounding alone.
            is_as_close: Returns whether all results are as close to double precision as the reference, or None if that
                is not known; called only if outputs of proven models differ.
        """
        self._hides_rows, self._padding, self._ties, self._exact = hides_rows, padding, ties, exact
        lines = self._lines(reference, results, noise)
        if lines and self.proven:
            is_close = is_as_close()
            if is_close:
                self._note("the result is as close to double precision as the source")
            self.proven = is_close is not None
            lines = self._lines(reference, results, noise) if is_close is None else {} if is_close else lines
        for index in lines:
            self._worst[index].passed = False
        return [f"output '{self._names[index]}': {line}" for index, line in lines.items()]

    def _lines(self, reference: Sequence[Value], results: Sequence[Value], noise: NoiseSource) -> dict[int, str]:
        """Return what differs, by output."""
        pairs = enumerate(zip(reference, results, strict=True))
        lines = {index: self._compare_values(a, b, index, (index,), noise) for index, (a, b) in pairs}
        return {index: line for index, line in lines.items() if line is not None}

    def outputs(self) -> tuple[OutputDifference, ...]:
        """Return the worst difference of every output for the record."""
        return tuple(
            OutputDifference(
                name, w.dtype,
                _finite(w.difference.max_abs), _finite(w.difference.max_rel), _finite(w.difference.max_ulp),
                w.rtol, _finite(w.atol), w.passed,
                error=_finite(w.place.error) if w.place is not None else 0.0,
                allowed=_finite(w.place.allowed) if w.place is not None else 0.0,
                where=w.place.index if w.place is not None else (),
            )
            for name, w in zip(self._names, self._worst, strict=True)
        )  # fmt: skip

    def _compare_values(self, a: Value, b: Value, index: int, path: Path, noise: NoiseSource) -> str | None:
        table = _table(a)
        if table is not None:
            return self._compare_maps(a, b, table, index, path, noise)
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return f"a sequence of {len(b)} instead of {len(a)}"
            pairs = enumerate(zip(a, b, strict=True))
            lines = (self._compare_values(x, y, index, (*path, i), noise) for i, (x, y) in pairs)
            return next((line for line in lines if line is not None), None)
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            return None if a is None and b is None else f"{_kind(b)} instead of {_kind(a)}"
        self._worst[index].dtype = a.dtype.name
        if a.dtype != b.dtype:
            return f"type {b.dtype} instead of {a.dtype}"
        if a.shape != b.shape:
            return f"shape {list(b.shape)} instead of {list(a.shape)}"
        if self._names[index] in self._random:
            return None
        if path == (index,) and index < len(self._padding):
            a, b = self._without_padding(a, b, index, self._padding[index])
        if is_float(a.dtype) or a.dtype.kind == "c":
            earlier = replace(self._worst[index])
            line = self._compare_floats(a, b, index, path, noise)
            tied = self._moved_by_ties(a, index, path) if line is not None else None
            if tied is None:
                return line
            self._worst[index], zero = earlier, a.dtype.type(0)
            return self._compare_floats(np.where(tied, zero, a), np.where(tied, zero, b), index, path, noise)
        return self._compare_discrete(a, b, index, path, noise)

    def _compare_maps(self, a: Value, b: Value, table: Array, index: int, path: Path, noise: NoiseSource) -> str | None:
        """Compare maps, or sequences of maps with the same keys, as tables with a row per map and a column per key."""
        other = _table(b)
        if other is None or isinstance(a, dict) != isinstance(b, dict):
            return f"{_kind(b)} instead of {_kind(a)}"
        if _keys(a) != _keys(b):
            return f"a map with the keys {_few(_keys(b))} instead of {_few(_keys(a))}"
        return self._compare_values(table, other, index, path, noise)

    def _compare_floats(self, a: Array, b: Array, index: int, path: Path, noise: NoiseSource) -> str | None:
        if self._hides_rows:
            a, b = self._without_hidden_rows(a, b, index)
        difference = float_difference(a, b)
        self.inexact = self.inexact or difference.max_abs > 0 or difference.max_ulp > 0
        dtype = _SINGLE if self._exported and a.dtype == _DOUBLE else a.dtype  # ONNX attributes hold single precision
        allowed = limit(dtype, self._accuracy)
        if difference.pattern is not None or self._accuracy is Accuracy.EXACT:
            self._keep(index, difference, allowed, None)
            unequal = difference.max_abs > 0 or difference.max_ulp > 0
            exact = f"differs by up to {difference.max_abs:.3g} ({difference.max_ulp:.0f} ulp), allowed 0"
            return difference.pattern or (exact if unequal else None)
        if difference.max_abs == 0 and difference.max_ulp == 0:
            self._keep(index, difference, allowed, None)
            return None
        is_near = difference.scaled <= _most_roundings(a.dtype)
        if self.proven and is_near:
            self._keep(index, difference, allowed, None)
            return None
        is_local = self._accuracy is not Accuracy.APPROXIMATES
        deviation = Deviation(a, b, allowed, local=is_local)
        excess, moves = deviation.excess(), None
        both = self._exact() if excess is not None and is_near else None
        if excess is not None and (result := _without_rounding(a, b, both, path)) is not None:
            in_double = Deviation(a, result, allowed, local=is_local)
            excess = in_double.excess()
            if excess is None:
                self._note(f"'{self._names[index]}' differs by rounding alone: both agree in double precision")
            else:
                excess, moves = self._explained((deviation, in_double), excess, index, path, noise)
        elif excess is not None and not self.proven:
            excess, moves = self._explained((deviation,), excess, index, path, noise)
        self._keep(index, difference, allowed, deviation.worst(moves))
        return excess.text if excess is not None else None

    def _explained(
        self, deviations: Sequence[Deviation], excess: Excess, index: int, path: Path, noise: NoiseSource
    ) -> tuple[Excess | None, Moves | None]:
        """Return what the noise of the reference does not explain of an excess, from as few samples as possible.

        One of the deviations, in single or in double precision, must be explained whole.
        """
        measured, moves = noise(), None
        left: Excess | None = excess
        for count in measured.steps if measured is not None else []:
            if measured is None or (moves := measured.moves(path, count)) is None:
                break
            lefts = [deviation.excess(moves) for deviation in deviations]
            left = None if None in lefts else lefts[-1]
            if left is None or (count >= _SAMPLES[1] and left.ratio > _HOPELESS):
                break
        if left is None and moves is not None and (share := deviations[0].loud_share(moves, _LOUD)) > _LOUD_SHARE:
            name, part = self._names[index], _LOUD / NOISE_FACTOR
            self._note(
                f"rounding alone moves {share:.0%} of '{name}' by over {part:.1%}: agreement there is weak evidence"
            )
        return left, moves

    def _without_padding(self, a: Array, b: Array, index: int, padding: Padding | None) -> tuple[Array, Array]:
        """Replace positions whose values are undefined by zeros in both."""
        if padding is None:
            return a, b
        why = Reason.POOLED if padding.pooled else Reason.PADDING
        self.left_out.add(why, self._names[index], padding.count, padding.positions)
        return padding.without(a), padding.without(b)

    def _without_hidden_rows(self, a: Array, b: Array, index: int) -> tuple[Array, Array]:
        """Replace rows that are NaN throughout in the reference and finite in the result by zeros in both."""
        if a.ndim == 0 or a.dtype.kind == "c":
            return a, b
        nan, number = np.isnan(a.astype(np.float64)), np.isfinite(b.astype(np.float64))
        hidden = np.asarray(nan.all(axis=-1, keepdims=True) & number.all(axis=-1, keepdims=True))
        if a.shape[-1] == 0 or not hidden.any():
            return a, b
        self._note(f"fully masked rows of '{self._names[index]}' are NaN in the reference: not compared")
        zero = a.dtype.type(0)
        return np.where(hidden, zero, a), np.where(hidden, zero, b)

    def _compare_discrete(self, a: Array, b: Array, index: int, path: Path, noise: NoiseSource) -> str | None:
        """Require equal integers, bools and strings, except where equal scores or rounding decide."""
        wrong = np.asarray(a != b)
        ties = 0
        if wrong.any() and a.dtype.kind in "iu":
            wrong = self._without_ties(a, b, wrong, index, path)
        if wrong.any() and self._accuracy is not Accuracy.EXACT:
            measured = noise()
            undecided = measured.undecided(path) if measured is not None else None
            if undecided is not None:
                ties = int(np.count_nonzero(wrong & undecided))
                wrong = wrong & ~undecided
                self._note_undecided(index, undecided, ties)
        count = int(np.count_nonzero(wrong))
        if a.dtype.kind in "iub" and a.size:
            largest = float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), where=wrong, initial=0.0))
            self._keep(index, Difference(max_abs=largest, max_ulp=largest), Limit(0.0, 0.0), None)
        return f"{count} of {a.size} elements differ" if count else None

    def _without_ties(self, a: Array, b: Array, wrong: Array, index: int, path: Path) -> Array:
        """Leave out indices whose scores are equal, and elements computed from such indices."""
        equal = self._ties.same_score(a, b) if self._accuracy is not Accuracy.EXACT else None
        if equal is None:
            tied = self._moved_by_ties(a, index, path)
            return wrong if tied is None else wrong & ~tied
        if (wrong & equal).any():
            self._note(f"the output '{self._names[index]}' has different indices with equal scores")
        return wrong & ~equal

    def _moved_by_ties(self, a: Array, index: int, path: Path) -> Array | None:
        """Return which elements depend on the order of equal scores, or None if none do."""
        if self._accuracy is Accuracy.EXACT or path != (index,):
            return None
        moved = self._ties.moved(a, index)
        if not moved.any():
            return None
        self.left_out.add(Reason.TIE, self._names[index], int(np.count_nonzero(moved)), moved.size)
        return moved

    def _note_undecided(self, index: int, undecided: Array, ties: int) -> None:
        name = self._names[index]
        if bool(undecided.all()):
            self._note(f"every element of '{name}' is undecided: rounding alone changes it, so no value was compared")
        elif ties:
            self._note(f"the output '{name}' differs in {ties} elements that rounding alone moves")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _keep(self, index: int, new: Difference, allowed: Limit, place: Place | None) -> None:
        worst = self._worst[index]
        old = worst.difference
        worst.difference = Difference(
            max(old.max_abs, new.max_abs), max(old.max_rel, new.max_rel), max(old.max_ulp, new.max_ulp)
        )
        worst.rtol = max(worst.rtol, allowed.rtol)
        worst.atol = max(worst.atol, allowed.rtol * new.scale)
        if place is not None and (worst.place is None or place.ratio > worst.place.ratio):
            worst.place = place


def _most_roundings(dtype: np.dtype[Any]) -> float:
    """Return by how much of |a| + median|a| kernels may differ if it is known that both compute the same function."""
    eps = epsilon(dtype)
    return (_ROUNDINGS if eps <= _SINGLE_EPS else _NARROW_ROUNDINGS) * eps


def _without_rounding(
    a: Array, b: Array, both: tuple[Sequence[Value], Sequence[Value]] | None, path: Path
) -> Array | None:
    """Return the reference plus the difference of both in double precision, where the result differs from it.

    Return None if they were not computed in double precision.
    """
    expected, result = (_descend(side, path) for side in both) if both is not None else (None, None)
    if expected is None or result is None or expected.shape != a.shape or result.shape != a.shape:
        return None
    return np.where(a == b, a, a + (result - expected))


def _kind(value: Value) -> str:
    """Describe a value in words."""
    if value is None:
        return "an empty optional"
    if isinstance(value, dict):
        return f"a map of {len(value)} keys"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"a tensor of {value.dtype}{list(value.shape)}"


def _keys(value: Value) -> list[int | str]:
    """Return the sorted keys of a map, or of the first map of a sequence."""
    first = value[0] if isinstance(value, list) and value else value
    return sorted(first, key=str) if isinstance(first, dict) else []


def _few(keys: list[int | str]) -> str:
    return ", ".join(str(key) for key in keys[:5]) + (" …" if len(keys) > 5 else "")


def _table(value: Value) -> Array | None:
    """Return a map, or a sequence of maps with the same keys, as an array with a column per key; otherwise None."""
    rows: list[Mapping[int | str, object]] = []
    for row in value if isinstance(value, list) else [value]:
        if not isinstance(row, dict):
            return None
        rows.append(row)
    keys = _keys(value)
    if not rows or any(sorted(row, key=str) != keys for row in rows):
        return None
    array = np.asarray([[row[key] for key in keys] for row in rows])
    array = array.astype(np.float32) if array.dtype.kind == "f" else array  # the runtime's maps hold single precision
    return array if isinstance(value, list) else array[0]


def _descend(values: Sequence[Value], path: Path) -> Array | None:
    value: Value = list(values)
    for step in path:
        if not isinstance(value, list) or step >= len(value):
            return None
        value = value[step]
    table = _table(value)
    return value if isinstance(value, np.ndarray) else table


def _finite(difference: float) -> float:
    """Replace an infinite or undefined difference by the largest number, because JSON has no infinity."""
    return difference if math.isfinite(difference) else sys.float_info.max
