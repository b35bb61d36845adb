"""Compare two half-precision models in single precision, where rounding cannot hide a wrong weight.

The check applies only if each single-precision copy represents its model: outputs that are finite in the same elements,
and at most 10 % away in the root mean square. Otherwise a note says that nothing was decided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import Engine, Feeds, Value
from sardonyx.verification import noise
from sardonyx.verification.output_comparison import Noise, OutputComparer
from sardonyx.verification.tolerance import is_float
from sardonyx.verification.upcast import new_constants, upcast

_FAITHFUL = 0.1  # largest rms difference of a copy, relative to the rms of the half-precision output
_UNDECIDED = "computes in half precision and could not be compared in single precision"


class SinglePrecision:
    """A reference that computes in float16 or bfloat16, and its copy in float32."""

    def __init__(self, source: ir.Model, open_model: Callable[[ir.Model], Engine | None]) -> None:
        """Compare with `source`; `open_model` opens a model like the reference, and returns None if it cannot."""
        self._source = source
        self._open = open_model

    def check(
        self,
        candidate: ir.Model,
        comparer: OutputComparer,
        feeds: Feeds,
        reference: Sequence[Value],
        results: Sequence[Value],
    ) -> list[str]:
        """Return one line for every output that differs in single precision; none if the source has no half precision.

        Args:
            candidate: The model to compare with the source.
            comparer: Compares the outputs and collects the notes.
            feeds: Inputs of one trial.
            reference: The source's outputs for them.
            results: The candidate's outputs for them.
        """
        if self._wide is None:
            return []
        wide = upcast(candidate) or candidate
        try:
            expected, outputs = self._run(self._wide, feeds), self._run(wide, feeds)
            if (
                expected is not None
                and outputs is not None
                and _represents(expected, reference)
                and _represents(outputs, results)
            ):
                return comparer.fresh().compare(expected, outputs, lambda: self.noise(wide, candidate, feeds, outputs))
        except RuntimeFailure:
            pass
        comparer.notes.append(_UNDECIDED)
        return []

    @functools.cached_property
    def _wide(self) -> ir.Model | None:
        return upcast(self._source)

    def _run(self, model: ir.Model, feeds: Feeds) -> list[Value] | None:
        engine = self._open(model)
        return engine.run(feeds) if engine is not None else None

    def new_constants(self, candidate: ir.Model) -> frozenset[str]:
        """Return the names of the candidate's half-precision constants that the source does not have."""
        return new_constants(candidate, self._source)

    def noise(self, wide: ir.Model, candidate: ir.Model, feeds: Feeds, clean: Sequence[Value]) -> Noise | None:
        """Return the noise of rounding every operation to single and the candidate's new constants to half precision.

        Args:
            wide: The candidate in single precision.
            candidate: The candidate in its own types.
            feeds: Inputs of one trial.
            clean: The outputs of the candidate in single precision.
        """
        probe = noise.disturbed(wide, stored=self.new_constants(candidate))
        engine = self._open(probe) if probe is not None else None
        if engine is None:
            return None
        return Noise(clean, lambda number: engine.run({**feeds, **noise.sample(number)}))


def _represents(wide: Sequence[Value], narrow: Sequence[Value]) -> bool:
    """Return whether single-precision outputs equal the half-precision ones up to the rounding of the latter."""
    return len(wide) == len(narrow) and all(_is_close(a, b) for a, b in zip(wide, narrow, strict=True))


def _is_close(wide: Value, narrow: Value) -> bool:
    if not isinstance(wide, np.ndarray) or not isinstance(narrow, np.ndarray):
        return type(wide) is type(narrow)
    if wide.shape != narrow.shape:
        return False
    if not is_float(wide.dtype):
        return True
    a, b = wide.astype(np.float64), narrow.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    a, b = a[finite], b[finite]
    return not a.size or float(np.linalg.norm(a - b)) <= _FAITHFUL * float(np.linalg.norm(b))
