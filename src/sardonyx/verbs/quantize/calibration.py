"""What samples tell about the inner values of a model: extremes, histograms and second moments.

Static quantization: several methods clip each value (`Histogram`). Which of them loses least is measured later.
Memory is bounded. The runtime first computes the extremes and the size of every value beside it, so that no activation
leaves it. Then it returns the values themselves, in groups of a limited number of bytes, and each is reduced to a
histogram of fixed size before the next sample runs.

Float16: the smallest and largest finite number of every float32 value, which the runtime computes beside each.

Second moments: for the rows x of an activation, H is the mean of xᵀx (inputs × inputs). A weight W that is rounded to Q
changes the result of its product by tr((W - Q)ᵀ H (W - Q)) on average, squared. The runtime computes xᵀx beside each
activation; the samples run once for each group of activations, and the results wait in files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import is_constant, operator
from sardonyx.ir.storage import Array
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.verbs.quantize.integer_regions import data_inputs
from sardonyx.verbs.quantize.recipe import PRODUCTS, Product, is_large, matrix_product
from sardonyx.verbs.quantize.scales import Moments
from sardonyx.verification.subject import Model, Subject

_Key = TypeVar("_Key", bound=Hashable)
Method = Literal["weighted squares", "squares", "extremes", "percentile", "entropy"]
DEFAULT: Method = "weighted squares"

_BINS = 2048
_LEVEL_STEPS = 255  # steps between the numbers of 8-bit integers
# How many times errors of clipped numbers count: all have one sign, and data of use reaches further.
_CLIPPED_WEIGHT = 16.0
_OUTSIDE_SHARE = 1e-4  # the share of the numbers outside of the interval of percentiles
_SMALLEST_SHARE = 1e-12  # of a distribution, so that its logarithm is finite
_SHRUNK = 2.0 ** (-np.arange(25) / 4)  # the ends of a range that are tried, as shares of the extremes


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

    @functools.cached_property
    def _centers(self) -> Array:
        return self.lowest + (np.arange(_BINS) + 0.5) * (self.highest - self.lowest) / _BINS

    def percentile(self) -> tuple[float, float]:
        """Return the interval that has all numbers but one of ten thousand, half of these at each end."""
        shares = np.cumsum(self.counts) / max(1, int(self.counts.sum()))
        edges = self.lowest + np.arange(_BINS + 1) * (self.highest - self.lowest) / _BINS
        first, last = np.searchsorted(shares, (_OUTSIDE_SHARE / 2, 1 - _OUTSIDE_SHARE / 2))
        low, high = min(float(edges[first]), 0.0), max(float(edges[min(last + 1, _BINS)]), 0.0)
        return (low, high) if high > low else (self.lowest, self.highest)

    def entropy(self) -> tuple[float, float]:
        """Return the interval whose 255 steps keep most of the distribution of the numbers that are not zero.

        Numbers outside of it count at its ends. The divergence of the distribution that the steps can hold from this
        one is the least.
        """
        counts = self.counts.astype(np.float64)
        counts[int(np.clip(-self.lowest * _BINS / (self.highest - self.lowest), 0, _BINS - 1))] -= self.zeros
        divergences = [self._divergence(np.maximum(counts, 0), share) for share in _SHRUNK]
        share = float(_SHRUNK[int(np.argmin(divergences))])
        return self.lowest * share, self.highest * share

    def _divergence(self, counts: Array, share: float) -> float:
        inside = np.flatnonzero((self._centers >= self.lowest * share) & (self._centers <= self.highest * share))
        if not len(inside):
            return np.inf
        first, last = int(inside[0]), int(inside[-1]) + 1
        clipped = counts[first:last].copy()
        held = clipped > 0
        clipped[0] += counts[:first].sum()
        clipped[-1] += counts[last:].sum()
        if not held.any():
            return np.inf
        step: Array = np.arange(last - first) * _LEVEL_STEPS // (last - first)
        sums, occupied = np.bincount(step, counts[first:last]), np.bincount(step, held)
        represented = np.where(held, (sums / np.maximum(occupied, 1))[step], 0)
        p, q = clipped / clipped.sum(), represented / represented.sum()
        both = p > 0
        return float((p[both] * np.log(p[both] / np.maximum(q[both], _SMALLEST_SHARE))).sum())

    def least_squares(self, clipped: float = _CLIPPED_WEIGHT) -> tuple[float, float]:
        """Return the interval whose 255 steps represent the numbers with the least squared error.

        With step s = (b - a) / 255, numbers inside of [a, b] have the error s² / 12 on average, zeros none, and numbers
        outside of it their squared distance from it, which counts `clipped` times.
        """
        centers = self._centers
        lows, highs = np.unique(self.lowest * _SHRUNK), np.unique(self.highest * _SHRUNK)
        below = np.minimum(centers - lows[:, None], 0) ** 2 @ self.counts
        above = np.maximum(centers - highs[:, None], 0) ** 2 @ self.counts
        inside = int(self.counts.sum()) - self.zeros
        steps = (highs[None, :] - lows[:, None]) / _LEVEL_STEPS
        errors = clipped * (below[:, None] + above[None, :]) + inside * steps**2 / 12
        errors[steps <= 0] = np.inf
        low, high = np.unravel_index(int(errors.argmin()), errors.shape)
        return float(lows[low]), float(highs[high])


METHODS: Mapping[Method, Callable[[Histogram], tuple[float, float]]] = {
    DEFAULT: Histogram.least_squares,
    "squares": lambda histogram: histogram.least_squares(1.0),
    "extremes": lambda histogram: (histogram.lowest, histogram.highest),
    "percentile": Histogram.percentile,
    "entropy": Histogram.entropy,
}


_GROUP_BYTES = 1 << 26  # of the values that one run returns; a larger value is a group of its own
_CLEARLY_LESS_SHARE = 0.95  # of the loss of the default
_MIN_RANGE = 2.0**-100  # of a range; steps, and their products with those of weights, are float32 numbers


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
    """What samples told about values, by the name in the source, and what measuring it took."""

    histograms: dict[str, Histogram]
    samples: int
    runs: int  # of the model
    peak_bytes: int  # of activations that were held at once
    method: Method = DEFAULT
    losses: dict[Method, float] = {}  # of the model with the ranges of each method, if they were compared
    is_symmetric: bool = False
    found: dict[Method, dict[str, Range]] = {}  # the ranges of the methods that were asked for

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges of the method."""
        if self.method not in self.found:
            interval = METHODS[self.method]
            ranges = {
                name: Range(*interval(histogram), histogram.lowest, histogram.highest)
                for name, histogram in self.histograms.items()
            }
            if self.is_symmetric:
                ranges = {name: each.symmetric() for name, each in ranges.items()}
            self.found[self.method] = ranges
        return self.found[self.method]

    def symmetric(self) -> Calibration:
        """Return the same with ranges for signed integers without zero points."""
        return replace(self, is_symmetric=True, found={})

    def chosen(self, losses: dict[Method, float]) -> Calibration:
        """Return the same with the method that loses least; the default, if it loses hardly more."""
        best = min(losses, key=lambda method: losses[method]) if losses else DEFAULT
        is_better = DEFAULT not in losses or losses[best] < _CLEARLY_LESS_SHARE * losses[DEFAULT]
        return replace(self, method=best if is_better else DEFAULT, losses=losses)

    @property
    def note(self) -> str:
        """What was measured, in one line."""
        samples, compared = f"{self.samples} sample" + ("s" if self.samples != 1 else ""), ""
        if self.method in self.losses:
            others = ", ".join(f"{name} {loss:.2g}" for name, loss in self.losses.items() if name != self.method)
            least = f"relative L2 {self.losses[self.method]:.2g} in all modules ({others})"
            compared = f"; clipped by {self.method}: {least}"
        return (
            f"ranges of {len(self.ranges)} values from {samples} in {self.runs} runs; "
            f"at most {self.peak_bytes / 1e6:.3g} MB of activations were held at once{compared}"
        )


def calibrate(source: Model, samples: Sequence[Feeds], threads: int | None = None) -> Calibration:
    """Run the source on the samples twice, and return the range of every value that could be stored in 8 bits.

    Raises:
        UsageError: There are no samples.
    """
    if not samples:
        raise UsageError("there are no samples to calibrate on", hint="pass some as `data`")
    model = Subject(source).model
    empty, sizes = _extremes(model, _candidates(model), samples, threads)
    found: dict[str, Histogram] = {}
    groups, held = in_groups(sizes, _GROUP_BYTES), 0
    for group in groups:
        observed = Observed(model.clone())
        observed.show(group)
        shown = [value.name for value in observed.model.graph.outputs]
        with Subject(observed.model).session(threads=threads, optimize=True) as engine:
            for feeds in samples:
                results = dict(zip(shown, engine.run(feeds), strict=True))
                outputs = [np.asarray(results[name]) for name in group]
                held = max(held, sum(output.nbytes for output in outputs))
                for name, output in zip(group, outputs, strict=True):
                    empty[name].add(output)
        found |= {name: empty[name] for name in group}
    return Calibration(found, len(samples), len(samples) * (1 + len(groups)), held)


def _candidates(model: ir.Model) -> list[str]:
    """Return the names of the float32 values of the main graph that quantized products or regions could store."""
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
        if value.name and facts.tensor(value) is None and not value.is_initializer()
        if facts.dtype(value) is ir.DataType.FLOAT and ((node := value.producer()) is None or not is_constant(node))
    ]


def in_groups(sizes: Mapping[_Key, int], most: int) -> list[list[_Key]]:
    """Return keys in order, in groups that take at most so many bytes together; a larger one is a group of its own."""
    groups: list[list[_Key]] = []
    taken = 0
    for key, size in sizes.items():
        if not groups or taken + size > most:
            groups.append([])
            taken = 0
        groups[-1].append(key)
        taken += size
    return groups


def _observations(observed: Observed, samples: Iterable[Feeds], threads: int | None) -> Iterator[list[Array]]:
    """Yield what was observed on each sample."""
    with Subject(observed.model).session(threads=threads, optimize=True) as engine:
        for feeds in samples:
            yield [np.asarray(value) for value in observed.split(engine.run(feeds))[1]]


def _extremes(
    model: ir.Model, names: Sequence[str], samples: Iterable[Feeds], threads: int | None
) -> tuple[dict[str, Histogram], dict[str, int]]:
    """Return empty histograms between the extremes of values, and their most bytes; the runtime computes both.

    Values that are not finite, or all zero, or whose steps would underflow, are left out.
    """
    observed = Observed(model.clone())
    for name in names:
        for kind in ("ReduceMin", "ReduceMax"):
            observed.add(observed.compute(kind, observed.value(name), keepdims=0), ir.DataType.FLOAT)
        observed.add(observed.compute("Size", observed.value(name)), ir.DataType.INT64)
    found, sizes = {name: Histogram(0.0, 0.0) for name in names}, dict.fromkeys(names, 0)
    for measured in _observations(observed, samples, threads):
        for name, low, high, size in zip(names, measured[::3], measured[1::3], measured[2::3], strict=True):
            one, sizes[name] = found[name], max(sizes[name], 4 * int(size))
            if size > 0:
                one.lowest, one.highest = min(one.lowest, float(low)), max(one.highest, float(high))
    usable = {name: one for name, one in found.items() if _MIN_RANGE < one.highest - one.lowest < math.inf}
    return usable, {name: sizes[name] for name in usable}


class MeasuredRange(Struct, frozen=True):
    """The finite numbers of a value, over all trials."""

    low: float
    high: float
    module: str  # that owns the node which computes it; "" for inputs of the model

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    def joined(self, other: MeasuredRange) -> MeasuredRange:
        """Return the range of both."""
        return MeasuredRange(min(self.low, other.low), max(self.high, other.high), self.module)


Ranges = dict[str, MeasuredRange]  # by the name of the value


def measure_ranges(graph: Facts, trials: Iterable[Feeds], threads: int | None) -> Ranges:
    """Return the least and the largest finite element, and 0, of every float32 value of the main graph.

    The model is changed for this purpose: it gets them as additional outputs.

    Raises:
        RuntimeFailure: The model rejects the inputs of every trial.
    """
    main, observed = graph.model.graph, Observed(graph.model)
    values = [value for value in main.inputs if not value.is_initializer()]
    values += [value for node in main if not is_constant(node) for value in node.outputs]
    values = [value for value in values if value.name and graph.dtype(value) is ir.DataType.FLOAT]
    names = [value.name or "" for value in values]
    modules = ["" if (node := value.producer()) is None else owner(node) for value in values]
    zero, infinity = observed.constant(np.zeros(1, np.float32)), observed.constant(np.float32(np.inf))
    flat = observed.constant(np.array([-1]))
    for value in values:
        line = observed.compute("Concat", observed.compute("Reshape", value, flat), zero, axis=0)  # never empty
        is_finite = observed.compute("Less", observed.compute("Abs", line), infinity)
        finite = observed.compute("Where", is_finite, line, zero)
        for kind in ("ReduceMin", "ReduceMax"):
            observed.add(observed.compute(kind, finite, keepdims=0), ir.DataType.FLOAT)
    ranges: Ranges = {}
    failure: RuntimeFailure | None = None
    with Subject(graph.model).session(threads=threads) as engine:
        for feeds in trials:
            try:
                measured = [float(np.asarray(value)) for value in observed.split(engine.run(feeds))[1]]
            except RuntimeFailure as error:
                failure = error
                continue
            for name, module, low, high in zip(names, modules, measured[::2], measured[1::2], strict=True):
                found = MeasuredRange(low, high, module)
                ranges[name] = ranges[name].joined(found) if name in ranges else found
    if failure is not None and not ranges:
        raise failure
    return ranges


def by_module(ranges: Iterable[MeasuredRange]) -> dict[str, MeasuredRange]:
    """Return the range of all values that each module computes."""
    modules: dict[str, MeasuredRange] = {}
    for each in ranges:
        modules[each.module] = modules[each.module].joined(each) if each.module in modules else each
    return modules


_MOMENTS_BYTES = 1 << 26  # of the sums of one run; a larger one is a group of its own


def measure_moments(source: Subject, samples: Sequence[Feeds], threads: int | None = None) -> dict[str, Moments]:
    """Return the second moments of the activation of every product with a constant weight, by the activation's name.

    Activations that are always zero, never finite, or too small to be squared have none.
    """
    found: dict[str, Moments] = {}
    folder = temporary_folder()  # deleted with the last of the moments
    sizes = _activations_of_products(source.model)
    for group in in_groups({name: 4 * size**2 for name, size in sizes.items()}, _MOMENTS_BYTES):
        observed, totals, counts = Observed(source.model.clone()), dict[str, Array](), dict.fromkeys(group, 0)
        for name in group:
            size, totals[name] = sizes[name], np.zeros((sizes[name], sizes[name]), np.float32)
            rows = observed.compute("Reshape", observed.value(name), observed.constant(np.array([-1, size])))
            square = observed.compute("MatMul", observed.compute("Transpose", rows, perm=[1, 0]), rows)
            observed.add(square, ir.DataType.FLOAT, [size, size])
            observed.add(observed.compute("Shape", rows), ir.DataType.INT64, [2])
        observed.remove_unused()
        for results in _observations(observed, samples, threads):
            for name, square, shape in zip(group, results[::2], results[1::2], strict=True):
                if np.isfinite(square).all():
                    totals[name] += square
                    counts[name] += int(shape[0])
        for name, total in totals.items():
            if counts[name] and total.any():
                measured = Moments(total / np.float32(counts[name]), folder)
                if measured.is_definite():
                    found[name] = measured
    return found


def _activations_of_products(model: ir.Model) -> dict[str, int]:
    """Return the names of the activations of products in the main graph, and the sizes of their last axes."""
    facts = Facts(model)
    facts.infer()
    products = [matrix_product(node, facts) for node in model.graph if operator(node) in PRODUCTS]
    return {
        product.activation.name: product.matrix.rows
        for product in products
        if isinstance(product, Product)
        and not product.reversed_rank
        and product.activation.name
        and is_large(product.matrix.tensor)
        if facts.dtype(product.activation) is ir.DataType.FLOAT
    }
