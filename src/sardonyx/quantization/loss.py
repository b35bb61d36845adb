"""The loss of a quantized model: how far its outputs are from those of the source, on data or on generated inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from sardonyx.errors import VerificationFailed
from sardonyx.records.quantization import Loss, OutputLoss
from sardonyx.runtime import Value
from sardonyx.runtime.values import Array
from sardonyx.verification.reference import Answer
from sardonyx.verification.subject import Subject


class _Sums(Struct):
    """What was summed over the samples of one output."""

    error: float = 0.0  # squares
    source: float = 0.0
    result: float = 0.0
    product: float = 0.0
    worst: float = 0.0
    agreeing: int = 0
    rows: int = 0

    def add(self, source: Array, result: Array) -> None:
        """Add one sample."""
        a, b = source.astype(np.float64), result.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)  # masks of -inf are the same on both sides
        error, size = float(np.square(a - b, where=both, out=np.zeros_like(a)).sum()), float(np.square(a[both]).sum())
        self.error += error
        self.source += size
        self.result += float(np.square(b[both]).sum())
        self.product += float((a[both] * b[both]).sum())
        self.worst = max(self.worst, _root_ratio(error, size))
        if a.ndim >= 1 and a.shape[-1] > 1:
            same = a.argmax(-1) == b.argmax(-1)
            self.agreeing += int(np.count_nonzero(same))
            self.rows += int(same.size)

    def record(self, name: str) -> OutputLoss:
        """Return the numbers of the record."""
        norms = math.sqrt(self.source * self.result)
        cosine = self.product / norms if norms else 1.0
        top1 = self.agreeing / self.rows if self.rows else None
        return OutputLoss(name, _root_ratio(self.error, self.source), self.worst, min(cosine, 1.0), top1, self.rows)


def _root_ratio(error: float, size: float) -> float:
    """Return sqrt(error / size), where x / 0 is 1: the source is zero everywhere and the result is not."""
    return math.sqrt(error / size) if size else float(error > 0)


def measure_loss(
    names: Sequence[str], result: Subject, answers: Sequence[Answer], measured_on: str, threads: int | None
) -> Loss:
    """Run the result on the inputs of the source's answers, with the runtime's optimizations on as users run it.

    Raises:
        VerificationFailed: The result has NaN or infinities where the source has none.
    """
    sums = {name: _Sums() for name in names}
    with result.session(threads=threads, optimize=True) as engine:
        for answer in answers:
            outputs = engine.run(answer.inputs.feeds)
            for name, a, b in zip(names, answer.outputs, outputs, strict=True):
                if (pair := _comparable(name, a, b)) is not None:
                    sums[name].add(*pair)
        runtime = engine.name
    outputs = tuple(total.record(name) for name, total in sums.items() if total.source or total.rows)
    return Loss(measured_on, len(answers), runtime, outputs)


def _comparable(name: str, a: Value, b: Value) -> tuple[Array, Array] | None:
    """Return two float arrays, or None for outputs of other types.

    Raises:
        VerificationFailed: The shapes differ, or only the result has NaN or infinities.
    """
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.dtype.kind != "f" or not a.size:
        return None
    hint = "nothing was written; `keep` more modules"
    if a.shape != b.shape:
        raise VerificationFailed(f"the output {name!r} has shape {b.shape} instead of {a.shape}", hint=hint)
    if bool((~np.isfinite(b) & np.isfinite(a)).any()):
        raise VerificationFailed(f"the output {name!r} has NaN or infinities that the source does not have", hint=hint)
    return a, b
