"""Compare every quantized product with its float32 simulation, on the activations that it receives in the result.

The simulation of each product is a part of the same graph and reads the same activation, so that both quantize the very
same numbers: only the rounding of the sums may differ. Comparing the outputs of two whole models would be weaker,
because an activation that rounds to another integer changes everything after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sardonyx.ir.support import SATURATION
from sardonyx.records.quantization import QuantizedProduct, SimulationCheck
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.verbs.quantize.calibration import in_groups
from sardonyx.verbs.quantize.dynamic_int8 import QuantizeConvolutions, QuantizeDynamically
from sardonyx.verbs.quantize.recipe import Simulated
from sardonyx.verbs.quantize.stacked_weights import QuantizeLstm
from sardonyx.verbs.quantize.static_int8 import QuantizeStatically
from sardonyx.verbs.quantize.weights import saturates
from sardonyx.verification.subject import Subject

_EPS = 2.0**-23
_DIFFERENCE = "sardonyx_difference_"  # how the names of additional outputs begin
_MAX_KINDS = 8  # of numbers that are compared for a product, at most
_GROUP_BYTES = 1 << 28  # of the weights of simulations that are run together
_ROUNDINGS = 64.0  # eps for each square root of the number of terms
_IN_INTEGERS = (QuantizeDynamically.name, QuantizeConvolutions.name, QuantizeLstm.name, QuantizeStatically.name)


def allowed_error(product: Simulated) -> float:
    """Return how far a product may be from its simulation, relative to the largest result: rounding of its sums."""
    return _ROUNDINGS * _EPS * math.sqrt(max(product.rows, 1)) + product.rounding


class ProductErrors(Struct, frozen=True):
    """The difference of each product from its simulation in its worst trial."""

    products: tuple[QuantizedProduct, ...]
    record: SimulationCheck
    notes: tuple[str, ...]
    failed: dict[str, str]  # products that differ by more than is allowed, by node, and how they do


class _Comparison(Struct):
    """The worst trial of one product."""

    allowed: float
    error: float | None = None
    is_rounded: bool = False  # only the simulation with 8-bit activations explains a result
    failure: str | None = None  # how the product first differed by more than is allowed

    @property
    def share(self) -> float:
        """The difference, divided by what is allowed."""
        return (self.error or 0.0) / self.allowed

    def add(self, rounding: float, difference: float, size: float, rounded: Sequence[tuple[float, float]]) -> None:
        """Add a trial: the closest of the simulations counts."""
        if not math.isfinite(size):  # the activation has NaN or infinities, as in the source
            return
        error, allowed, is_rounded = _relative(difference, size), rounding, False
        if error > rounding and rounded:
            # An activation between two integers may be rounded to either. Without optimizations it is not rounded.
            pairs = [(_relative(own, size), rounding + _relative(other, size)) for own, other in rounded]
            (error, allowed), is_rounded = min(pairs, key=lambda pair: pair[0] / pair[1]), True
        self.is_rounded |= is_rounded
        if self.error is None or error / allowed > self.share:
            self.error, self.allowed = error, allowed


def check_products(
    model: ir.Model, products: Sequence[Simulated], trials: Sequence[Feeds], threads: int | None
) -> ProductErrors:
    """Run a model that also contains the simulations; it gets the differences as additional outputs.

    Products that the runtime may fuse are compared twice, with its optimizations off and on. The simulations of a large
    model are run in groups, because their weights are in float32.
    """
    began = time.perf_counter()
    if any(product.recipe == QuantizeLstm.name for product in products):
        threads = 1  # several threads divide a batch, and quantize the state of each part with its own range
    _add_differences(model, products)
    found = [_Comparison(allowed_error(product)) for product in products]
    sizes = {number: 4 * product.elements for number, product in enumerate(products)}
    groups, name = in_groups(sizes, _GROUP_BYTES), ""
    for group in groups:
        part = _part(model, group) if len(groups) > 1 else model
        places = {output.name: place for place, output in enumerate(part.graph.outputs)}
        outputs = [places[_output(number, 0)] for number in group]
        own, subject = [products[number] for number in group], Subject(part)
        for optimize in (False, True) if any(product.is_fusible for product in own) else (False,):
            compared = [found[number] for number in group]
            runtime = _run(subject, outputs, own, compared, trials, threads, optimize=optimize)
            name = name or runtime
    record = SimulationCheck(
        sum(each.error is not None for each in found),
        len(trials),
        max(each.share for each in found),
        name,
        time.perf_counter() - began,
    )
    failed = {product.node: each.failure for product, each in zip(products, found, strict=True) if each.failure}
    compared = tuple(
        QuantizedProduct(each.node, each.module, each.recipe, each.rows, each.columns, one.error, one.allowed)
        for each, one in zip(products, found, strict=True)
    )
    return ProductErrors(compared, record, _notes(found, products), failed)


def _part(model: ir.Model, group: Sequence[int]) -> ir.Model:
    """Return a model with the differences of some products alone.

    Its own outputs stay (`support.ATTENTION_CACHE`).
    """
    part = model.clone()
    wanted = {_output(number, kind) for number in group for kind in range(_MAX_KINDS)}
    part.graph.outputs[:] = [
        output
        for output in part.graph.outputs
        if output.name in wanted or not (output.name or "").startswith(_DIFFERENCE)
    ]
    RemoveUnusedNodesPass()(part)
    return part


def _output(number: int, kind: int) -> str:
    """Return the name of an output with a difference or a size."""
    return f"{_DIFFERENCE}{number}_{kind}"


def _run(
    subject: Subject,
    outputs: Sequence[int],
    products: Sequence[Simulated],
    found: Sequence[_Comparison],
    trials: Sequence[Feeds],
    threads: int | None,
    *,
    optimize: bool,
) -> str:
    """Add the differences of all trials to what was found, and return the name of the runtime."""
    with subject.session(threads=threads, optimize=optimize) as engine:
        for feeds in trials:
            results = engine.run(feeds)
            for product, comparison, first in zip(products, found, outputs, strict=True):
                if not optimize or (product.is_fusible and comparison.error is not None):
                    numbers = [float(np.asarray(value)) for value in results[first : first + _MAX_KINDS]]
                    rounded = [(numbers[2 + 2 * k], numbers[3 + 2 * k]) for k in range(len(product.rounded))]
                    comparison.add(allowed_error(product), numbers[0], numbers[1], rounded)
        name = engine.name
    for comparison in found:
        if comparison.share > 1 and comparison.failure is None:
            how = " with the optimizations of the runtime" if optimize else ""
            comparison.failure = (
                f"differs from its simulation by {comparison.error:.2g} of its largest result{how}; "
                f"rounding explains {comparison.allowed:.2g}"
            )
    return name


def _notes(found: Sequence[_Comparison], products: Sequence[Simulated]) -> tuple[str, ...]:
    missing, rounded = sum(each.error is None for each in found), sum(each.is_rounded for each in found)
    notes = (
        [f"{missing} products were not compared: their activations were never finite, or their branch was never taken"]
        if missing
        else []
    )
    if rounded:
        notes.append(f"ONNX Runtime rounds the activations of {rounded} products to 8-bit integers")
    if any(product.recipe in _IN_INTEGERS for product in products) and saturates():
        notes.append(f"{SATURATION.fact}: the weights of `int8` use 7 bits")
    compensated = [product.is_compensated for product in products if product.is_compensated is not None]
    if any(compensated):
        notes.append(f"the rounding errors of {sum(compensated)} weights compensate each other on the data")
    if not all(compensated):
        plain = compensated.count(False)
        notes.append(f"{plain} weights are rounded to the closest integers: no data shows their activations")
    return tuple(notes)


def _relative(difference: float, size: float) -> float:
    """Return the difference relative to the largest result; infinite if only the quantized product is not finite."""
    if not math.isfinite(difference):
        return math.inf
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def _add_differences(model: ir.Model, products: Sequence[Simulated]) -> None:
    """Add differences and sizes of every product to the outputs of the graph.

    These are max |result - simulation| and max |scale|; with a rounded simulation, its difference from the result
    and from the simulation as well. A result in integers is the nearest number of its grid to a sum that differs from
    the simulation by rounding alone: it is within half a step and this rounding of the simulation, which is not on the
    grid.
    """
    observed = Observed(model)
    for number, product in enumerate(products):
        difference = observed.compute("Sub", product.result, product.simulation)
        if product.step:  # how much larger than allowed it is, and 0 where it is not
            half = observed.constant(np.float32(product.step / 2))
            difference = observed.compute("Relu", observed.compute("Sub", observed.compute("Abs", difference), half))
        values = [difference, product.scale or product.simulation]
        for rounded in product.rounded:
            values += [observed.compute("Sub", other, rounded) for other in (product.result, product.simulation)]
        for kind, value in enumerate(values):
            largest = observed.compute("ReduceMax", observed.compute("Abs", value), keepdims=0)
            largest.name = _output(number, kind)
            observed.add(largest, ir.DataType.FLOAT)
