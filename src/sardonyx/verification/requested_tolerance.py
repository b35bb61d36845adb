"""Compare outputs within a tolerance that the user requests, as `numpy.allclose` does, beside the tolerance of ours.

Floats match if |reference - result| ≤ atol + rtol · |reference|, infinities and NaN if they are at the same places.
Integers, bools and strings must be equal. Outputs of random operators are compared by type and shape only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.errors import UsageError
from sardonyx.runtime import Array, Value
from sardonyx.verification.tolerance import is_float


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
