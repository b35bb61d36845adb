"""Compares two models of half precision as they compute in single precision, where rounding cannot hide a wrong weight.

The check applies only while both copies in single precision still stand for their models: close to the half-precision
outputs, finite in the same places. Otherwise it says so and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import Engine, Feeds, Value
from sardonyx.verification import noise
from sardonyx.verification.judge import Judge, Noise
from sardonyx.verification.tolerance import is_float
from sardonyx.verification.upcast import new_constants, upcast

_FAITHFUL = 0.1  # rms error of the copy, of the rms of the half-precision output
_UNDECIDED = "computes in half precision and could not be compared in single precision"


class SinglePrecision:
    """A reference that computes in float16 or bfloat16, and its copy in float32."""

    def __init__(self, source: ir.Model, open_model: Callable[[ir.Model], Engine | None]) -> None:
        """`open_model` opens a model as the reference is opened; None where it does not load."""
        self._source = source
        self._open = open_model
        self._wide: ir.Model | None = None
        self._known = False

    def check(
        self, candidate: ir.Model, judge: Judge, feeds: Feeds, reference: Sequence[Value], results: Sequence[Value]
    ) -> list[str]:
        """One line for every output that differs in single precision; nothing where the source has no half precision.

        Args:
            candidate: The model to compare with the source.
            judge: How the outputs are compared; takes the notes.
            feeds: Inputs of one trial.
            reference: The source's outputs for them.
            results: The candidate's outputs for them.
        """
        if not self._known:
            self._wide, self._known = upcast(self._source), True
        if self._wide is None:
            return []
        wide = upcast(candidate) or candidate
        try:
            expected, given = self._run(self._wide, feeds), self._run(wide, feeds)
            if (
                expected is None
                or given is None
                or not _stands_for(expected, reference)
                or not _stands_for(given, results)
            ):
                judge.notes.append(_UNDECIDED)
                return []
            return judge.alike().compare(expected, given, lambda: self.noise(wide, candidate, feeds, given))
        except RuntimeFailure:
            judge.notes.append(_UNDECIDED)
            return []

    def _run(self, model: ir.Model, feeds: Feeds) -> list[Value] | None:
        engine = self._open(model)
        return engine.run(feeds) if engine is not None else None

    def new_constants(self, candidate: ir.Model) -> frozenset[str]:
        """The candidate's constants of half precision that the source does not have."""
        return new_constants(candidate, self._source)

    def noise(self, wide: ir.Model, candidate: ir.Model, feeds: Feeds, clean: Sequence[Value]) -> Noise | None:
        """What rounding moves: every operation in single precision, and the candidate's new weights in half precision.

        Args:
            wide: The candidate in single precision.
            candidate: In its own types.
            feeds: Inputs of one trial.
            clean: What the candidate in single precision answers.
        """
        probe = noise.disturbed(wide, stored=self.new_constants(candidate))
        engine = self._open(probe) if probe is not None else None
        if engine is None:
            return None
        return Noise(clean, lambda number: engine.run({**feeds, **noise.draw(number)}))


def _stands_for(wide: Sequence[Value], narrow: Sequence[Value]) -> bool:
    """Whether outputs in single precision are those in half precision, up to the rounding of the latter."""
    return len(wide) == len(narrow) and all(_alike(a, b) for a, b in zip(wide, narrow, strict=True))


def _alike(wide: Value, narrow: Value) -> bool:
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
