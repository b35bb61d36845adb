"""Compare the outputs of two models, output by output, and keep the worst difference of every output.

Float outputs a and b are compared by the rules of `tolerance`. If one is violated, both models are run once more in
double precision, with outputs A and B, and two questions are asked:

    the same function?   A and B differ by no more than the rules allow, or by a rounding error that is known, |a - A|
    no worse computed?   |b - B| is at most four times |a - A|, unless a and b are within 1,024 units of rounding

The first is not asked if it is answered already, because exact arithmetic found all rewrites to be equal. Discrete
outputs must be equal, except elements that rounding, or the order of equal scores, also changes.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.errors import UsageError
from sardonyx.records.run import Accuracy, OutputDifference
from sardonyx.runtime import Array, Value
from sardonyx.verification.exclusions import Padding, Ties, is_as_close
from sardonyx.verification.tolerance import (
    ROUNDING_FACTOR,
    SINGLE_EPS,
    Deviation,
    Difference,
    Limit,
    Place,
    epsilon,
    float_difference,
    gap,
    is_float,
    limit,
)


class Reason(StrEnum):
    """Why elements were not compared."""

    PADDING = "positions of '{name}' are padding that sees no key"
    POOLED = "items of '{name}' are pooled from padding that sees no key"
    TIE = "elements of '{name}' depend on the order of equal scores"


_WEAK_EVIDENCE, _WEAK_SHARE = 0.05, 0.1  # a limit of five percent in a tenth of the elements is worth a note
# Of eps, by which kernels may differ if double precision shows that they agree, or exact arithmetic; narrow types have
# few digits to lose, and the runtime computes their sums in single precision.
_KERNEL_ROUNDINGS, _NARROW_KERNEL_ROUNDINGS = 2.0**10, 2.0**4
_SAME_RANGE = 0.1  # distance of half precision from double precision, beyond which their ranges differ

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
Path: TypeAlias = tuple[int, ...]
Outputs: TypeAlias = Sequence[Value]


class Precise(Struct, frozen=True):
    """What is known beyond the outputs of both models in one trial."""

    exact: Outputs | None = None  # of the reference in double precision
    result: Outputs | Callable[[], Outputs | None] | None = None  # of the other model, which may be run when it is read
    # Pairs of outputs that differ by rounding alone, computed as they are read; the cheapest are first.
    roundings: Callable[[], Iterable[tuple[Outputs, Outputs]]] = tuple
    nearby: Callable[[], Iterable[Outputs]] = tuple  # of the reference, for inputs that differ by rounding

    def moves(self, path: Path, shape: tuple[int, ...]) -> Iterator[Array]:
        """Yield how far rounding moves each element of a float output: by the first pair, by the first two, and so on.

        What a pair explains, more pairs explain too.
        """
        gaps = (gap(*pair) for pair in self._pairs(path))
        yield from itertools.accumulate((moved for moved in gaps if moved.shape == shape), np.maximum)

    def undecided(self, path: Path, shape: tuple[int, ...]) -> Array:
        """Return which elements of a discrete output rounding changes."""
        changes = [np.asarray(one != other) for one, other in self._pairs(path) if one.shape == shape]
        return np.logical_or.reduce(changes) if changes else np.zeros(shape, bool)

    def both(self, path: Path, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return one output of both models in double precision, or None if one of them is not known."""
        result = self.result() if callable(self.result) else self.result
        arrays = [_descend(side, path) for side in (self.exact, result) if side is not None]
        a, b = arrays if len(arrays) == 2 else (None, None)
        return (a, b) if a is not None and b is not None and a.shape == b.shape == shape else None

    def _pairs(self, path: Path) -> Iterator[tuple[Array, Array]]:
        for one, other in self.roundings():
            a, b = _descend(one, path), _descend(other, path)
            if a is not None and b is not None and a.shape == b.shape:
                yield a, b


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
        """Compare outputs with these names, of which some are `random`.

        Args:
            names: The names of the outputs.
            accuracy: The loosest class of the rewrites between the two models.
            random: Names of the outputs that depend on random operators.
            exported: Whether the reference is the module that the graph was exported from.
            proven: Whether all rewrites are equal in exact arithmetic, so that only kernels and roundings can differ.
        """
        self._exported, self.proven = exported, proven
        self._names = list(names)
        self._accuracy = accuracy
        self._random = random
        self._worst = [_Worst() for _ in names]
        self.notes: list[str] = []
        self._left_out = dict[Reason, dict[str, tuple[int, int]]]()  # elements that were not compared, and all

    def compare(
        self,
        reference: Outputs,
        results: Outputs,
        precise: Callable[[], Precise | None] = lambda: None,
        *,
        hides_rows: bool = False,
        padding: Sequence[Padding | None] = (),
        ties: Ties = Ties(),  # noqa: B008 (it is frozen)
        strict: bool = False,
    ) -> list[str]:
        """Return one line for every output that differs by more than is allowed.

        Args:
            reference: The outputs of the reference.
            results: The outputs of the other model for the same inputs.
            precise: Runs the models in double precision; called only if it can change the result.
            hides_rows: Whether a mask in these inputs hides whole rows: a row that is NaN throughout in the reference
                may then hold numbers in the result.
            padding: Per output the positions that are not compared; empty if all are.
            ties: What the reference chose by score; evaluated only if outputs differ.
            strict: Compare in double precision whatever differs, since half precision hides wrong weights.
        """
        self._precise, self._hides_rows, self._padding = precise, hides_rows, padding
        self._ties, self._strict = ties, strict
        lines: list[str] = []
        for index, (a, b) in enumerate(zip(reference, results, strict=True)):
            line = self._compare_values(a, b, (index,))
            if line is not None:
                self._worst[index].passed = False
                lines.append(f"output '{self._names[index]}': {line}")
        return lines

    @property
    def left_out(self) -> list[str]:
        """What was not compared, a line for each reason: the numbers of the first output, and how many others."""
        lines: list[str] = []
        for why, outputs in self._left_out.items():
            (name, (count, total)), *others = outputs.items()
            rest = f", nor in {len(others)} other output{'s' if len(others) > 1 else ''}" if others else ""
            lines.append(f"{count} of {total} {why.format(name=name)}: not compared{rest}")
        return lines

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

    def _compare_values(self, a: Value, b: Value, path: Path) -> str | None:
        """Compare two outputs, or elements of two sequences; maps with the same keys are compared as tables."""
        index, table, other = path[0], _table(a), _table(b)
        if table is not None and other is not None and isinstance(a, dict) == isinstance(b, dict):
            if _keys(a) != _keys(b):
                return f"a map with the keys {_few(_keys(b))} instead of {_few(_keys(a))}"
            a, b = table, other
        elif table is None and isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return f"a sequence of {len(b)} instead of {len(a)}"
            lines = (self._compare_values(x, y, (*path, i)) for i, (x, y) in enumerate(zip(a, b, strict=True)))
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
        padding = self._padding[index] if len(path) == 1 and index < len(self._padding) else None
        if padding is not None:
            self._leave_out(Reason.POOLED if padding.pooled else Reason.PADDING, index, padding.where)
            a, b = padding.without(a), padding.without(b)
        if not is_float(a.dtype) and a.dtype.kind != "c":
            return self._compare_discrete(a, b, path)
        earlier = replace(self._worst[index])
        line = self._compare_floats(a, b, path)
        tied = self._moved_by_ties(a, path) if line is not None else None
        if tied is None:
            return line
        self._worst[index], zero = earlier, a.dtype.type(0)
        return self._compare_floats(np.where(tied, zero, a), np.where(tied, zero, b), path)

    def _compare_floats(self, a: Array, b: Array, path: Path) -> str | None:
        if self._hides_rows:
            a, b = self._without_hidden_rows(a, b, path[0])
        difference, line, place = float_difference(a, b), None, None
        dtype = _SINGLE if self._exported and a.dtype == _DOUBLE else a.dtype  # ONNX attributes hold single precision
        allowed = limit(dtype, self._accuracy)
        differs = difference.max_abs > 0 or difference.max_ulp > 0
        if difference.pattern is not None:
            line = difference.pattern
        elif differs and self._accuracy is Accuracy.EXACT:
            line = f"differs by up to {difference.max_abs:.3g} ({difference.max_ulp:.0f} ulp), allowed 0"
        elif differs:
            eps = epsilon(a.dtype)
            is_near = difference.scaled <= (_KERNEL_ROUNDINGS if eps <= SINGLE_EPS else _NARROW_KERNEL_ROUNDINGS) * eps
            if not (self.proven and is_near):
                line, place = self._decide(a, b, allowed, is_near, path)
        self._keep(path[0], difference, allowed, place)
        return line

    def _decide(self, a: Array, b: Array, allowed: Limit, is_near: bool, path: Path) -> tuple[str | None, Place | None]:
        """Return what differs by more than rounding explains, and the place nearest to the limit."""
        deviation = Deviation(a, b, allowed, local=self._accuracy is not Accuracy.APPROXIMATES)
        line, place = deviation.excess(), deviation.worst()
        if line is None and (self.proven or not self._strict):
            return None, place
        known = self._precise()
        if self.proven:
            return None if line is None or self._is_as_precise(a, b, path, known) else line, place
        explained = self._explained(deviation, a, path, known) if is_near else None
        both = known.both(path, a.shape) if known is not None and explained is None else None
        if explained is not None:
            return None, explained
        if known is None:
            self._note(f"'{self._names[path[0]]}' could not be compared in double precision")
        elif both is None:
            return self._within_roundings(deviation, path, known)
        elif not all(_represents(exact, own, a != b) for exact, own in zip(both, (a, b), strict=True)):
            self._note(f"'{self._names[path[0]]}' could not be compared in double precision, where its range differs")
        elif is_near or is_as_close(both, a, b):
            return self._in_double(deviation, a, b, both, path, known)
        else:
            line = line or "differs, and is farther from double precision than the reference"
        return line, place

    def _explained(self, deviation: Deviation, a: Array, path: Path, known: Precise | None) -> Place | None:
        """Return the place nearest to the limit if the rounding error of an exported module, if small, is the reason.

        `_in_double` would accept the difference for the same reason. The graph need not run in double precision then.
        """
        if known is None or known.exact is None or not self._exported or self._strict or a.dtype != _SINGLE:
            return None
        moves = next(known.moves(path, deviation.shape), None)
        if moves is None or deviation.excess(moves) or deviation.loud_share(moves, _WEAK_EVIDENCE) > _WEAK_SHARE:
            return None
        self._note(f"'{self._names[path[0]]}' differs by rounding alone, as the module does from double precision")
        return deviation.worst(moves)

    def _is_as_precise(self, a: Array, b: Array, path: Path, known: Precise | None) -> bool:
        """Return whether the result is as close to double precision as the reference.

        By chance the reference may be very close where many steps follow on each other, as in a loop. So it is enough
        that the reference is as far for inputs that differ by rounding.
        """
        exact = _descend(known.exact, path) if known is not None and known.exact is not None else None
        if known is None or exact is None:
            return False
        others = (_descend(outputs, path) for outputs in known.nearby())
        for own, of_what in itertools.chain(
            [(a, "")], ((other, " for inputs that differ by rounding") for other in others)
        ):
            if own is not None and is_as_close((exact, exact), own, b):
                self._note(f"the result is as close to double precision as the source{of_what}")
                return True
        return False

    def _in_double(
        self, own: Deviation, a: Array, b: Array, both: tuple[Array, Array], path: Path, known: Precise
    ) -> tuple[str | None, Place | None]:
        """Compare the outputs by their difference in double precision; elements that are not compared are equal.

        If there is one, known rounding errors must explain it, or the difference in the outputs' own types, whole.
        """
        exact, result = both
        wide = a if a.dtype.kind == "c" else a.astype(np.float64)
        is_double = a.dtype == _DOUBLE and not self._exported
        allowed = limit(a.dtype if is_double else _SINGLE, self._accuracy)
        local = self._accuracy is not Accuracy.APPROXIMATES
        deviation = Deviation(wide, np.where(a == b, wide, wide + (result - exact)), allowed, local=local)
        if deviation.excess() is None:
            self._note(f"'{self._names[path[0]]}' differs by rounding alone: both agree in double precision")
            return None, deviation.worst()
        line, place = self._within_roundings(deviation, path, known)
        if line is not None and not self._strict and self._within_roundings(own, path, known)[0] is None:
            line = None
        return line and f"{line}, in double precision", place

    def _within_roundings(self, deviation: Deviation, path: Path, known: Precise) -> tuple[str | None, Place | None]:
        """Return what differs by more than the known rounding errors, and the place nearest to the limit."""
        moves, line = None, deviation.excess()
        for moves in known.moves(path, deviation.shape):
            line = deviation.excess(moves)
            if line is None:
                break
        share = deviation.loud_share(moves, _WEAK_EVIDENCE) if line is None and moves is not None else 0.0
        if share > _WEAK_SHARE:
            name, part = self._names[path[0]], _WEAK_EVIDENCE / ROUNDING_FACTOR
            self._note(
                f"rounding alone moves {share:.0%} of '{name}' by over {part:.1%}: agreement there is weak evidence"
            )
        return line, deviation.worst(moves)

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

    def _compare_discrete(self, a: Array, b: Array, path: Path) -> str | None:
        """Require equal integers, bools and strings, except where equal scores or rounding decide."""
        name, wrong = self._names[path[0]], np.asarray(a != b)
        if wrong.any() and a.dtype.kind in "iu":
            wrong = self._without_ties(a, b, wrong, path)
        if wrong.any() and self._accuracy is not Accuracy.EXACT and (known := self._precise()) is not None:
            both = known.both(path, a.shape)
            rounded = known.undecided(path, a.shape) if both is None else both[0] == both[1]
            ties = int(np.count_nonzero(wrong & rounded))
            if both is None and bool(rounded.all()):
                self._note(
                    f"every element of '{name}' is undecided: rounding alone changes it, so no value was compared"
                )
            elif ties:
                self._note(f"the output '{name}' differs in {ties} elements that rounding alone moves")
            wrong = wrong & ~rounded
        count = int(np.count_nonzero(wrong))
        if a.dtype.kind in "iub" and a.size:
            largest = float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), where=wrong, initial=0.0))
            self._keep(path[0], Difference(max_abs=largest, max_ulp=largest), Limit(0.0, 0.0), None)
        return f"{count} of {a.size} elements differ" if count else None

    def _without_ties(self, a: Array, b: Array, wrong: Array, path: Path) -> Array:
        """Leave out indices whose scores are equal, and elements computed from such indices."""
        equal = self._ties.same_score(a, b) if self._accuracy is not Accuracy.EXACT else None
        if equal is None:
            tied = self._moved_by_ties(a, path)
            return wrong if tied is None else wrong & ~tied
        if (wrong & equal).any():
            self._note(f"the output '{self._names[path[0]]}' has different indices with equal scores")
        return wrong & ~equal

    def _moved_by_ties(self, a: Array, path: Path) -> Array | None:
        """Return which elements depend on the order of equal scores, or None if none do."""
        index, *inside = path
        moved = None if self._accuracy is Accuracy.EXACT or inside else self._ties.moved(a, index)
        if moved is None or not moved.any():
            return None
        self._leave_out(Reason.TIE, index, moved)
        return moved

    def _leave_out(self, why: Reason, index: int, where: Array) -> None:
        """Count the elements of an output that are not compared in one trial, and all."""
        outputs = self._left_out.setdefault(why, {})
        count, total = outputs.get(self._names[index], (0, 0))
        outputs[self._names[index]] = (count + int(np.count_nonzero(where)), total + where.size)

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


def _represents(exact: Array, own: Array, compared: Array) -> bool:
    """Return whether an output in double precision has the range of the one in the model's own types.

    A mask of -3e38 is infinite in half precision, and a number in a wider type.
    """
    finite = np.isfinite(own.astype(np.float64)) if own.dtype.kind != "c" else np.isfinite(own)
    if not np.isfinite(exact[finite & compared]).all():
        return False
    if epsilon(own.dtype) <= SINGLE_EPS:
        return True
    narrow = own[finite].astype(np.float64)
    return float(np.linalg.norm(exact[finite] - narrow)) <= _SAME_RANGE * float(np.linalg.norm(narrow))


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


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A relative and an absolute tolerance."""

    rtol: float
    atol: float

    @classmethod
    def of(cls, rtol: float | None, atol: float | None) -> Tolerance | None:
        """Return the requested tolerance, in which one that is not given is 0; None if neither is given.

        Raises:
            UsageError: One of them is not a number from 0 up.
        """
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(f"`{name}` is not a tolerance: {value}", hint="give a number from 0 up")
        return None if rtol is None and atol is None else cls(rtol or 0.0, atol or 0.0)

    def failures(
        self, names: Sequence[str], reference: Sequence[Value], results: Sequence[Value], random: Collection[str]
    ) -> list[str]:
        """Return one line for every output that differs by more than is allowed."""
        triples = zip(names, reference, results, strict=True)
        return [
            f"output '{name}': {line}" for name, a, b in triples for line in self._differences(a, b, name in random)
        ]

    def _differences(self, a: Value, b: Value, is_random: bool) -> Iterator[str]:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if a.dtype != b.dtype or a.shape != b.shape:
                yield f"{b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
            elif not is_random and (line := self._difference(a, b)) is not None:
                yield line
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for one, other in zip(a, b, strict=True):
                yield from self._differences(one, other, is_random)
        elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            for key in a:
                yield from self._differences(np.asarray(a[key]), np.asarray(b[key]), is_random)
        elif a is not None or b is not None:
            yield "another kind of value, or another number of values"

    def _difference(self, a: Array, b: Array) -> str | None:
        if not is_float(a.dtype) and a.dtype.kind != "c":
            unequal = int(np.count_nonzero(a != b))
            return f"{unequal} of {a.size} elements differ" if unequal else None
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        one, other = a.astype(wide), b.astype(wide)
        with np.errstate(all="ignore"):
            error = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
            bound = self.atol + self.rtol * np.where(np.isfinite(one), np.abs(one), 0.0)
            outside = ~(error <= bound)
        if not outside.any():
            return None
        worst = np.unravel_index(int(np.argmax(np.where(outside, np.nan_to_num(error, nan=np.inf), -1.0))), a.shape)
        count, at = int(np.count_nonzero(outside)), ", ".join(str(int(index)) for index in worst)
        return f"{count} of {a.size} elements are outside, the worst by {float(error[worst]):.3g} at [{at}]"
