"""Ranges of activations over samples, for static quantization: the extremes and a histogram of each value.

Several methods clip each value (`histogram`). Which of them loses least is measured later.

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
from sardonyx.quantization.histogram import DEFAULT, METHODS, Histogram, Method
from sardonyx.quantization.integer_regions import data_inputs
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.verification.subject import Model, Subject

_GROUP_BYTES = 1 << 26  # of the values that one run returns; a larger value is a group of its own
_MUCH_LESS = 0.95  # of the loss of the default
_NARROWEST = 2.0**-100  # of a range; steps, and their products with those of weights, are float32 numbers


class Range(Struct, frozen=True):
    """The numbers of one value over all samples."""

    low: float  # of the interval that 8 bits represent; numbers outside of it are clipped
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

    found: dict[Method, dict[str, Range]]  # by the method that clips them
    samples: int
    runs: int  # of the model
    peak_bytes: int  # of activations that were held at once
    method: Method = DEFAULT
    losses: dict[Method, float] = {}  # of the model with the ranges of each method, if they were compared

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges of the method."""
        return self.found[self.method]

    def symmetric(self) -> Calibration:
        """Return the same with ranges for signed integers without zero points."""
        found = {
            method: {name: each.symmetric() for name, each in ranges.items()} for method, ranges in self.found.items()
        }
        return replace(self, found=found)

    def chosen(self, losses: dict[Method, float]) -> Calibration:
        """Return the same with the method that loses least; the default, if it loses hardly more."""
        best: Method = DEFAULT
        for method, loss in losses.items():
            if best not in losses or loss < losses[best]:
                best = method
        is_better = DEFAULT not in losses or losses[best] < _MUCH_LESS * losses[DEFAULT]
        return replace(self, method=best if is_better else DEFAULT, losses=losses)

    @property
    def note(self) -> str:
        """What was measured, in one line."""
        samples = f"{self.samples} sample" + ("s" if self.samples != 1 else "")
        return (
            f"ranges of {len(self.ranges)} values from {samples} in {self.runs} runs; "
            f"at most {self.peak_bytes / 1e6:.3g} MB of activations were held at once{self._compared}"
        )

    @property
    def _compared(self) -> str:
        if self.method not in self.losses:
            return ""
        others = ", ".join(f"{name} {loss:.2g}" for name, loss in self.losses.items() if name != self.method)
        return f"; clipped by {self.method}: relative L2 {self.losses[self.method]:.2g} in all modules ({others})"


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
    found: dict[Method, dict[str, Range]] = {method: {} for method in METHODS}
    held = 0
    for group in groups:
        histograms = {name: Histogram(extremes[name].lowest, extremes[name].highest) for name in group}
        held = max(held, _fill(source, histograms, samples, threads))
        for name, histogram in histograms.items():
            for method, interval in METHODS.items():
                found[method][name] = Range(*interval(histogram), histogram.lowest, histogram.highest)
    return Calibration(found, len(samples), len(samples) * (1 + len(groups)), held)


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
