"""Ranges of activations over samples, for static quantization: the extremes and a histogram of each value.

Memory is bounded. The runtime first computes the extremes and the size of every value beside it, so that no activation
leaves it. Then it returns the values themselves, in groups of a limited number of bytes, and each is reduced to a
histogram of fixed size before the next sample runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import UsageError
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import is_constant
from sardonyx.quantization.integer_regions import data_inputs
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.runtime.values import Array
from sardonyx.verification.subject import Model, Subject

_BINS = 2048
_GROUP_BYTES = 1 << 26  # of the values that one run returns; a larger value is a group of its own
_LEVELS = 255  # steps between the numbers of 8-bit integers
_CLIPPED = 16  # how many times errors of clipped numbers count: all have one sign, and data of use reaches further
_NARROWEST = 2.0**-100  # of a range; steps, and their products with those of weights, are float32 numbers
_SHRUNK = 2.0 ** (-np.arange(25) / 4)  # the ends of a range that are tried, as shares of the extremes


class Range(Struct, frozen=True):
    """The numbers of one value over all samples."""

    low: float  # of the interval with the least squared error in 8 bits; numbers outside of it are clipped
    high: float
    lowest: float  # the extremes; at most and at least 0
    highest: float
    is_symmetric: bool = False  # stored in signed integers without a zero point

    def symmetric(self) -> Range:
        """Return the range that has 0 in its middle."""
        most = max(-self.low, self.high)
        return Range(-most, most, self.lowest, self.highest, is_symmetric=True)


class Calibration(Struct, frozen=True):
    """Ranges by the name of the value in the source, and what measuring them took."""

    ranges: dict[str, Range]
    samples: int
    runs: int  # of the model
    peak_bytes: int  # of activations that were held at once

    def symmetric(self) -> Calibration:
        """Return the same with ranges for signed integers without zero points."""
        return replace(self, ranges={name: each.symmetric() for name, each in self.ranges.items()})

    @property
    def note(self) -> str:
        """What was measured, in one line."""
        samples = f"{self.samples} sample" + ("s" if self.samples != 1 else "")
        return (
            f"ranges of {len(self.ranges)} values from {samples} in {self.runs} runs; "
            f"at most {self.peak_bytes / 1e6:.3g} MB of activations were held at once"
        )


class _Extremes(Struct):
    """What the first run over the samples found about one value."""

    lowest: float = 0.0
    highest: float = 0.0
    elements: int = 0  # of the largest sample

    @property
    def is_usable(self) -> bool:
        """Whether the value has finite numbers that are not all zero, in steps that do not underflow."""
        return _NARROWEST < self.highest - self.lowest < math.inf


def calibrate(source: Model, samples: Sequence[Feeds], threads: int | None = None) -> Calibration:
    """Run the source on the samples twice, and return the range of every value that could be stored in 8 bits.

    Raises:
        UsageError: There are no samples.
    """
    if not samples:
        raise UsageError("there are no samples to calibrate on", hint="pass some as `data`")
    names = _candidates(source)
    extremes = _extremes(source, names, samples, threads)
    usable = [name for name in names if extremes[name].is_usable]
    groups = list(_groups(usable, extremes))
    ranges: dict[str, Range] = {}
    held = 0
    for group in groups:
        histograms = {name: Histogram(extremes[name].lowest, extremes[name].highest) for name in group}
        held = max(held, _fill(source, histograms, samples, threads))
        for name, histogram in histograms.items():
            low, high = histogram.least_squares()
            ranges[name] = Range(low, high, histogram.lowest, histogram.highest)
    return Calibration(ranges, len(samples), len(samples) * (1 + len(groups)), held)


class Histogram:
    """Counts of the numbers of one value in bins of equal width between its extremes."""

    def __init__(self, lowest: float, highest: float) -> None:
        """Count numbers in this interval, which contains 0."""
        self.lowest, self.highest = lowest, highest
        self.counts = np.zeros(_BINS, np.int64)
        self.zeros = 0  # which every scale represents exactly

    def add(self, values: Array) -> None:
        """Count the numbers of an array; those that are not finite are left out."""
        flat = values.reshape(-1)
        flat = flat[np.isfinite(flat)]
        self.zeros += flat.size - int(np.count_nonzero(flat))
        places = (flat - np.float32(self.lowest)) * np.float32(_BINS / (self.highest - self.lowest))
        self.counts += np.bincount(np.clip(places, 0, _BINS - 1).astype(np.int32), minlength=_BINS)

    def least_squares(self) -> tuple[float, float]:
        """Return the interval whose 255 steps represent the numbers with the least squared error.

        With step s = (b - a) / 255, numbers inside of [a, b] have the error s² / 12 on average, zeros none, and numbers
        outside of it their squared distance from it, which counts 16 times.
        """
        centers = self.lowest + (np.arange(_BINS) + 0.5) * (self.highest - self.lowest) / _BINS
        lows, highs = self.lowest * _SHRUNK, self.highest * _SHRUNK
        below = np.array([(self.counts * np.minimum(centers - low, 0) ** 2).sum() for low in np.unique(lows)])
        above = np.array([(self.counts * np.maximum(centers - high, 0) ** 2).sum() for high in np.unique(highs)])
        lows, highs = np.unique(lows), np.unique(highs)
        inside = int(self.counts.sum()) - self.zeros
        steps = (highs[None, :] - lows[:, None]) / _LEVELS
        errors = _CLIPPED * (below[:, None] + above[None, :]) + inside * steps**2 / 12
        errors[steps <= 0] = np.inf
        low, high = np.unravel_index(int(errors.argmin()), errors.shape)
        return float(lows[low]), float(highs[high])


def _candidates(source: Model) -> list[str]:
    """Return the names of the float32 values of the main graph that quantized products or regions could store."""
    model = _fresh(source)
    facts = Facts(model)
    facts.infer()
    values: dict[ir.Value, None] = {}
    for node in model.graph:
        if indices := data_inputs(node):
            read = [node.inputs[index] for index in indices if index < len(node.inputs)]
            values.update(dict.fromkeys(value for value in (*read, node.outputs[0]) if value is not None))
    return [
        value.name
        for value in values
        if value.name and facts.tensor(value) is None and not _is_constant(value)
        if facts.dtype(value) is ir.DataType.FLOAT
    ]


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and is_constant(producer))


def _fresh(source: Model) -> ir.Model:
    """Return a graph of the source that may be changed."""
    if isinstance(source, onnx.ModelProto):
        return io.from_proto(source)
    if isinstance(source, ir.Model):
        return source.clone()
    return source.model.clone() if isinstance(source, io.LoadedFile) else Subject(source).model


def _extremes(
    source: Model, names: Sequence[str], samples: Iterable[Feeds], threads: int | None
) -> dict[str, _Extremes]:
    """Return the extremes and the size of every value, which the runtime computes beside it."""
    observed = Observed(_fresh(source))
    for name in names:
        for kind in ("ReduceMin", "ReduceMax"):
            observed.add(observed.compute(kind, observed.value(name), keepdims=0), ir.DataType.FLOAT)
        observed.add(observed.compute("Size", observed.value(name)), ir.DataType.INT64)
    found = {name: _Extremes() for name in names}
    with Subject(observed.model).session(threads=threads, optimize=True) as engine:
        for feeds in samples:
            _, measured = observed.split(engine.run(feeds))
            for name, low, high, size in zip(names, measured[::3], measured[1::3], measured[2::3], strict=True):
                one = found[name]
                one.elements = max(one.elements, int(np.asarray(size)))
                if np.asarray(size) > 0:
                    one.lowest = min(one.lowest, float(np.asarray(low)))
                    one.highest = max(one.highest, float(np.asarray(high)))
    return found


def _groups(names: Iterable[str], extremes: dict[str, _Extremes]) -> Iterator[list[str]]:
    """Yield values that are returned together, of at most `_GROUP_BYTES`."""
    group: list[str] = []
    taken = 0
    for name in names:
        size = 4 * extremes[name].elements
        if group and taken + size > _GROUP_BYTES:
            yield group
            group, taken = [], 0
        group.append(name)
        taken += size
    if group:
        yield group


def _fill(source: Model, histograms: dict[str, Histogram], samples: Iterable[Feeds], threads: int | None) -> int:
    """Count the numbers of some values over all samples; return the most bytes that were held at once."""
    observed = Observed(_fresh(source))
    observed.show(histograms)
    shown = [value.name for value in observed.model.graph.outputs]
    held = 0
    with Subject(observed.model).session(threads=threads, optimize=True) as engine:
        for feeds in samples:
            results = dict(zip(shown, engine.run(feeds), strict=True))
            outputs = [np.asarray(results[name]) for name in histograms]
            held = max(held, sum(output.nbytes for output in outputs))
            for histogram, output in zip(histograms.values(), outputs, strict=True):
                histogram.add(output)
    return held
