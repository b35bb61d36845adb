"""Holds the answers of two models against each other, output by output, and keeps the worst of every output."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sardonyx.proof.tolerance import Difference, Limit, float_difference, is_float, limit, within
from sardonyx.record import Accuracy, OutputDifference
from sardonyx.runtime import Array, Value

_FLOAT_DRAWS = 2  # their size is much the same from draw to draw
_TIE_DRAWS = 16  # a tie falls to either side with about even odds: it should be seen to fall to both

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


class Noise:
    """The reference's answers to one set of inputs, and what they become when every rounding is disturbed."""

    def __init__(self, clean: Sequence[Value], disturb: Callable[[int], Sequence[Value]]) -> None:
        self._clean = clean
        self._disturb = disturb
        self._draws: list[Sequence[Value]] = []

    def size(self, path: tuple[int, ...]) -> Difference | None:
        """How far one float output moves."""
        pairs = [pair for pair in self._pairs(path, _FLOAT_DRAWS) if pair is not None]
        moves = [float_difference(*pair) for pair in pairs]
        if not moves:
            return None
        return Difference(scaled=max(m.scaled for m in moves), rms=max(m.rms for m in moves))

    def undecided(self, path: tuple[int, ...]) -> Array | None:
        """Which elements of a discrete output change."""
        changes = [np.asarray(pair[0] != pair[1]) for pair in self._pairs(path, _TIE_DRAWS) if pair is not None]
        return np.logical_or.reduce(changes) if changes else None

    def _pairs(self, path: tuple[int, ...], count: int) -> Iterator[tuple[Array, Array] | None]:
        """Clean and disturbed answers for one tensor, None where they are not of one shape."""
        clean = _descend(self._clean, path)
        for number in range(count):
            if number == len(self._draws):
                self._draws.append(self._disturb(number))
            moved = _descend(self._draws[number], path)
            alike = clean is not None and moved is not None and clean.shape == moved.shape
            yield (clean, moved) if alike and clean is not None and moved is not None else None


@dataclass(slots=True)
class _Worst:
    """The worst differences seen at one output so far."""

    dtype: str = ""
    difference: Difference = field(default_factory=Difference)
    allowed: Limit = field(default_factory=lambda: Limit(0.0, 0.0))
    atol: float = 0.0
    passed: bool = True


class Judge:
    """Compares outputs of one accuracy class; random outputs by type and shape only."""

    def __init__(
        self, names: Sequence[str], accuracy: Accuracy, random: frozenset[str], *, exported: bool = False
    ) -> None:
        """Judge outputs of these names; with `exported` the reference is a module that the graph was exported from."""
        self._exported = exported
        self._names = list(names)
        self._accuracy = accuracy
        self._random = random
        self._worst = [_Worst() for _ in names]
        self.notes: list[str] = []

    def compare(
        self, reference: Sequence[Value], results: Sequence[Value], noise: Callable[[], Noise | None]
    ) -> list[str]:
        """One line for every output that is not what it should be; `noise` is asked only where it can matter."""
        lines: list[str] = []
        for index, (a, b) in enumerate(zip(reference, results, strict=True)):
            line = self._compare_values(a, b, index, (index,), noise)
            if line is not None:
                self._worst[index].passed = False
                lines.append(f"output '{self._names[index]}': {line}")
        return lines

    def outputs(self) -> tuple[OutputDifference, ...]:
        """The worst of every output, as the record holds it."""
        return tuple(
            OutputDifference(
                name, w.dtype,
                _finite(w.difference.max_abs), _finite(w.difference.max_rel), _finite(w.difference.max_ulp),
                w.allowed.rtol, w.atol, w.passed,
            )
            for name, w in zip(self._names, self._worst, strict=True)
        )  # fmt: skip

    def _compare_values(
        self, a: Value, b: Value, index: int, path: tuple[int, ...], noise: Callable[[], Noise | None]
    ) -> str | None:
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return f"a sequence of {len(b)} instead of {len(a)}"
            pairs = enumerate(zip(a, b, strict=True))
            found = (self._compare_values(x, y, index, (*path, i), noise) for i, (x, y) in pairs)
            return next((line for line in found if line is not None), None)
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            return None if a is None and b is None else f"{_kind(b)} instead of {_kind(a)}"
        self._worst[index].dtype = a.dtype.name
        if a.dtype != b.dtype:
            return f"type {b.dtype} instead of {a.dtype}"
        if a.shape != b.shape:
            return f"shape {list(b.shape)} instead of {list(a.shape)}"
        if self._names[index] in self._random:
            return None
        if is_float(a.dtype) or a.dtype.kind == "c":
            return self._compare_floats(a, b, index, path, noise)
        return self._compare_discrete(a, b, index, path, noise)

    def _compare_floats(
        self, a: Array, b: Array, index: int, path: tuple[int, ...], noise: Callable[[], Noise | None]
    ) -> str | None:
        difference = float_difference(a, b)
        dtype = _SINGLE if self._exported and a.dtype == _DOUBLE else a.dtype  # ONNX attributes hold single precision
        allowed = limit(dtype, self._accuracy)
        if not within(difference, allowed) and difference.pattern is None and self._accuracy is not Accuracy.EXACT:
            measured = noise()
            allowed = limit(dtype, self._accuracy, measured.size(path) if measured is not None else None)
        self._keep(index, difference, allowed)
        if within(difference, allowed):
            return None
        if difference.pattern is not None:
            return difference.pattern
        return (
            f"differs by up to {difference.max_abs:.3g} ({difference.scaled:.3g} of its scale, "
            f"{difference.rms:.3g} in the mean; allowed {allowed.rtol:.3g} and {allowed.rms:.3g})"
        )

    def _compare_discrete(
        self, a: Array, b: Array, index: int, path: tuple[int, ...], noise: Callable[[], Noise | None]
    ) -> str | None:
        """Integers, bools and strings are equal, except where the reference itself cannot decide (an ArgMax tie)."""
        wrong = np.asarray(a != b)
        ties = 0
        if wrong.any() and self._accuracy is not Accuracy.EXACT:
            measured = noise()
            undecided = measured.undecided(path) if measured is not None else None
            if undecided is not None:
                ties = int(np.count_nonzero(wrong & undecided))
                wrong = wrong & ~undecided
        count = int(np.count_nonzero(wrong))
        if ties and not count:
            self.notes.append(f"the output '{self._names[index]}' differs in {ties} elements that rounding alone moves")
        if a.dtype.kind in "iub" and a.size:
            gap = float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))
            self._keep(index, Difference(max_abs=gap, max_ulp=gap), Limit(0.0, 0.0))
        return f"{count} of {a.size} elements differ" if count else None

    def _keep(self, index: int, new: Difference, allowed: Limit) -> None:
        worst = self._worst[index]
        old = worst.difference
        worst.difference = Difference(
            max(old.max_abs, new.max_abs), max(old.max_rel, new.max_rel), max(old.max_ulp, new.max_ulp)
        )
        worst.allowed = Limit(max(worst.allowed.rtol, allowed.rtol), max(worst.allowed.rms, allowed.rms))
        worst.atol = max(worst.atol, allowed.rtol * new.scale)


def _kind(value: Value) -> str:
    return "nothing" if value is None else "a sequence" if isinstance(value, list) else "a tensor"


def _descend(values: Sequence[Value], path: tuple[int, ...]) -> Array | None:
    value: Value = list(values)
    for step in path:
        if not isinstance(value, list) or step >= len(value):
            return None
        value = value[step]
    return value if isinstance(value, np.ndarray) else None


def _finite(difference: float) -> float:
    """The largest number there is for what is infinitely or undefinedly far off: JSON knows no infinity."""
    return difference if math.isfinite(difference) else sys.float_info.max
