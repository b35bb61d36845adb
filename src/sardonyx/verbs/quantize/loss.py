"""The loss of a quantized model against the outputs of the source on samples, and the metric of the user.

The outputs of the source wait in files, so that memory holds those of one sample at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure, UsageError, VerificationFailed
from sardonyx.frontend.sources import user_error
from sardonyx.ir.storage import Array
from sardonyx.records.quantization import Interval, Loss, MetricMeans, OutputLoss, Scores
from sardonyx.runtime import Value
from sardonyx.verbs.quantize.samples import Feeds, Sample, Samples, required_inputs, user_function
from sardonyx.verification.subject import Subject


class Metric(Struct, frozen=True):
    """A function `(outputs by name, sample) -> number`; higher is better."""

    name: str
    path: Path | None
    function: Callable[..., Any]

    @classmethod
    def of(cls, metric: str | Callable[..., Any] | None) -> Metric | None:
        """Return the metric that FILE.py:FUNCTION or a function is."""
        if metric is None:
            return None
        if not isinstance(metric, str):
            return cls(getattr(metric, "__name__", "metric"), None, metric)
        return cls(metric, *user_function(metric, "the metric"))

    def __call__(self, outputs: Mapping[str, Value], sample: Sample, label: str) -> float:
        """Return the number for one sample.

        Raises:
            UsageError: The function fails, or does not return a number.
        """
        try:
            value = float(self.function(dict(outputs), dict(sample)))
        except Exception as error:  # the user's code may raise anything; it is reported
            what = f"the metric failed on {label}"
            raise user_error(self.path or Path(self.name), what, error) from error
        if not math.isfinite(value):
            raise UsageError(f"the metric {self.name} returned {value} for {label}", hint="return a finite number")
        return value


Outputs = Mapping[str, Array]


def arrays(names: Sequence[str], values: Sequence[Value]) -> dict[str, Array]:
    """Return the outputs that are arrays, by name; narrow floats as float32."""
    return {
        name: value if value.dtype.kind in "fiub" else value.astype(np.float32)
        for name, value in zip(names, values, strict=True)
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU"
    }


class Answers:
    """The outputs of the source on some samples, and its metric on each."""

    def __init__(
        self,
        source: Subject,
        samples: Samples,
        numbers: Sequence[int],
        *,
        metric: Metric | None = None,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Run the source, with the runtime's optimizations off.

        Raises:
            UsageError: A sample does not fit the inputs of the model, or the metric fails.
        """
        self._folder = temporary_folder()
        self._samples, self._numbers = samples, tuple(numbers)
        self.feeds = Feeds(samples, self._numbers, required_inputs(source.model), extra=metric is not None)
        self.names = [value.name or "" for value in source.model.graph.outputs]
        self.metric = metric
        self.scored: list[float] = []  # the metric of the source on each sample
        with source.session(threads=threads) as engine:
            for place, number in enumerate(self._numbers):
                label = samples.label(number)
                try:
                    outputs = arrays(self.names, engine.run(self.feeds[place]))
                except RuntimeFailure as failure:
                    raise UsageError(f"the model does not accept {label}: {failure.message}") from failure
                np.savez(self._file(place), **outputs)  # pyright: ignore[reportArgumentType]
                if metric is not None:
                    self.scored.append(metric(outputs, samples[number], label))
                if progress is not None:
                    progress((place + 1) / len(self._numbers))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[str, Sample, Mapping[str, Value], Outputs]]:
        """Yield the label of each sample, the sample, its inputs, and the outputs of the source."""
        for place, number in enumerate(self._numbers):
            with np.load(self._file(place)) as stored:
                outputs = {name: stored[name] for name in stored.files}
            yield self._samples.label(number), self._samples[number], self.feeds[place], outputs

    def _file(self, place: int) -> Path:
        return Path(self._folder.name) / f"{place}.npz"


RESAMPLES = 1000
LEVEL = 0.95
_MIN_ROW_NUMBERS = 10  # numbers of a row below which the rows of a sample share a deviation
_SUMS_PER_OUTPUT = 7  # numbers of one output of one sample: see `_sums`


class Measured(Struct, frozen=True, eq=False):
    """What was measured on every sample."""

    names: tuple[str, ...]  # of the outputs that are compared
    sums: Array  # samples × outputs × `_SUMS_PER_OUTPUT`
    source_metric: tuple[float, ...]  # by sample; empty without a metric
    result_metric: tuple[float, ...]
    runtime: str

    def scores(self, seed: int = 0, ranked: frozenset[str] | None = None) -> Scores | None:
        """Return the numbers over all samples, with intervals; None if there is no output to compare.

        `ranked` are the outputs whose rows count for top-1 agreement; None: all.
        """
        if not self.names:
            return None
        counts, sums, metric = resampled(len(self.sums), seed), self.sums, None
        if ranked is not None:
            sums = sums.copy()
            sums[:, [name not in ranked for name in self.names], 4:] = 0
        drawn = np.tensordot(counts, sums, axes=1)  # resamples × outputs × sums
        every = np.concatenate([sums.sum(0)[None], drawn])  # the first are all samples
        if self.source_metric:
            drops = np.asarray(self.source_metric) - np.asarray(self.result_metric)
            metric = _interval(np.append(drops.mean(), counts @ drops / len(drops)))
        top1 = _interval(_lowest_agreement(every)) if every[0, :, 5].any() else None
        return Scores(_interval(_relative(every).max(1)), _interval(_cosine(every).min(1)), top1, metric)

    def expected_agreement(self, ranked: frozenset[str] | None = None) -> float | None:
        """Return the top-1 agreement to expect on other samples; None if no output has rows.

        A few rows that all agree say little. How close the two largest numbers of each row are, beside the errors of
        its numbers, says how many of them will change places.
        """
        whole = self.sums.sum(0)
        shares = [
            1 - sums[6] / sums[5]
            for name, sums in zip(self.names, whole, strict=True)
            if sums[5] and (ranked is None or name in ranked)
        ]
        return float(min(shares, default=1.0)) if whole[:, 5].any() else None

    def loss(self, measured_on: str, metric: str | None, seed: int = 0, ranked: frozenset[str] | None = None) -> Loss:
        """Return the record."""
        whole, worst, outputs, means = self.sums.sum(0), _relative(self.sums).max(0), list[OutputLoss](), None
        for at, (name, sums) in enumerate(zip(self.names, whole, strict=True)):
            top1 = float(sums[4] / sums[5]) if sums[5] else None
            relative, cosine = float(_relative(sums)), float(_cosine(sums))
            outputs.append(OutputLoss(name, relative, float(worst[at]), cosine, top1, int(sums[5])))
        if metric is not None and self.source_metric:
            means = MetricMeans(metric, float(np.mean(self.source_metric)), float(np.mean(self.result_metric)))
        return Loss(measured_on, len(self.sums), self.runtime, tuple(outputs), self.scores(seed, ranked), means)


def resampled(count: int, seed: int) -> Array:
    """Return how often each sample is drawn in each resample of the bootstrap."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)


def _interval(numbers: Array) -> Interval:
    """Return the first number with the interval of the others, which are those of resamples."""
    low, high = np.quantile(numbers[1:], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    center = float(numbers[0])
    return Interval(center, min(float(low), center), max(float(high), center))


def _relative(sums: Array) -> Array:
    """Return sqrt(error / size), where x / 0 is 1: the source is zero everywhere and the result is not."""
    error, size = sums[..., 0], sums[..., 1]
    return np.where(size > 0, np.sqrt(error / np.where(size > 0, size, 1)), (error > 0).astype(np.float64))


def _cosine(sums: Array) -> Array:
    norms = np.sqrt(sums[..., 1] * sums[..., 2])
    return np.minimum(np.where(norms > 0, sums[..., 3] / np.where(norms > 0, norms, 1), 1.0), 1.0)


def _lowest_agreement(sums: Array) -> Array:
    rows = sums[..., 5]
    return np.where(rows > 0, sums[..., 4] / np.where(rows > 0, rows, 1), 1.0).min(1)


def measure(result: Subject, answers: Answers, threads: int | None, most: int | None = None) -> Measured:
    """Run the result on (some of) the samples of the source's answers, with optimizations on as users run it.

    Raises:
        VerificationFailed: The result has NaN or infinities where the source has none.
        UsageError: The metric fails.
    """
    rows: list[dict[str, list[float]]] = []
    scored: list[float] = []
    with result.session(threads=threads, optimize=True) as engine:
        for label, sample, feeds, expected in itertools.islice(answers, most):
            outputs = arrays(answers.names, engine.run(feeds))
            rows.append(
                {
                    name: _sums(a, outputs[name]) if a.dtype.kind == "f" else _equal(a, outputs[name])
                    for name, a in expected.items()
                    if a.size and (a.dtype.kind != "f" or _comparable(name, a, outputs[name]))
                }
            )
            if answers.metric is not None:
                scored.append(answers.metric(outputs, sample, label))
        runtime = engine.name
    blank = [0.0] * _SUMS_PER_OUTPUT
    known = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in known if any(row.get(name, blank)[1] or row.get(name, blank)[5] for row in rows)]
    table = np.array([[row.get(name, blank) for name in names] for row in rows], np.float64)
    return Measured(
        tuple(names),
        table.reshape(len(rows), len(names), _SUMS_PER_OUTPUT),
        tuple(answers.scored[: len(rows)]),
        tuple(scored),
        runtime,
    )


def _equal(source: Array, result: Array) -> list[float]:
    """Return the sums of an output of integers, such as classes: each is a row that agrees if it is equal."""
    same = np.count_nonzero(source == result) if source.shape == result.shape else 0
    return [0.0, 0.0, 0.0, 0.0, float(same), float(source.size), 0.0]


def _sums(source: Array, result: Array) -> list[float]:
    """Return the squares of error, source and result, their product, agreeing rows, all rows, and expected changes."""
    a, b = source.astype(np.float64), result.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)  # masks of -inf are the same on both sides
    error = np.subtract(a, b, where=both, out=np.zeros_like(a))
    products = (np.square(error), np.square(a[both]), np.square(b[both]), a[both] * b[both])
    squares = [float(each.sum()) for each in products]
    if a.ndim < 1 or a.shape[-1] < 2:
        return [*squares, 0.0, 0.0, 0.0]
    same = a.argmax(-1) == b.argmax(-1)
    return [*squares, float(np.count_nonzero(same)), float(same.size), _expected_changes(a, b)]


def _expected_changes(source: Array, result: Array) -> float:
    """Return in how many rows the largest number is expected to change, if errors were drawn anew.

    The errors of two numbers differ by a normal number with twice the variance of one: the probability that it exceeds
    the gap between the two largest is erfc(gap / (2 deviation)) / 2.
    """
    finite = np.isfinite(source) & np.isfinite(result)
    error = np.subtract(result, source, where=finite, out=np.zeros_like(source))
    variance = error.var(-1, ddof=1)
    if source.shape[-1] < _MIN_ROW_NUMBERS:  # a few numbers of one row say little about their deviation
        variance = np.full_like(variance, variance.mean())
    deviation = np.sqrt(variance)
    largest = np.partition(np.where(finite, source, -np.inf), -2, axis=-1)[..., -2:]
    is_known = np.isfinite(largest).all(-1) & (deviation > 0)
    gap = np.subtract(largest[..., 1], largest[..., 0], where=is_known, out=np.zeros_like(deviation))
    return float(sum(math.erfc(ratio) for ratio in gap[is_known] / (2 * deviation[is_known]))) / 2


def _comparable(name: str, a: Array, b: Array) -> bool:
    """Check the outputs of source and result; return True.

    Raises:
        VerificationFailed: The shapes differ, or only the result has NaN or infinities.
    """
    hint = "nothing was written; `keep_modules` with more modules"
    if a.shape != b.shape:
        raise VerificationFailed(f"the output {name!r} has shape {b.shape} instead of {a.shape}", hint=hint)
    if bool((~np.isfinite(b) & np.isfinite(a)).any()):
        raise VerificationFailed(f"the output {name!r} has NaN or infinities that the source does not have", hint=hint)
    return True


def size_of_loss(scores: Scores) -> float:
    """Return the relative L2 of a model; of one whose outputs are integers, the share of those that changed."""
    if scores.relative_l2.value or scores.top1 is None:
        return scores.relative_l2.value
    return 1 - scores.top1.value
