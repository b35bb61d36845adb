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

from sardonyx.errors import VerificationFailed
from sardonyx.quantization.recipe import Simulated
from sardonyx.records.quantization import SimulationCheck
from sardonyx.runtime import Feeds
from sardonyx.verification.subject import Subject

_EPS = 2.0**-23
_ROUNDINGS = 64.0  # eps for each square root of the number of terms


def allowed_error(terms: int) -> float:
    """Return how far a product may be from its simulation, relative to the largest result: rounding of its sums."""
    return _ROUNDINGS * _EPS * math.sqrt(terms)


class ProductErrors(Struct, frozen=True):
    """The largest relative difference of each product, None if it was never finite, and the record of the check."""

    errors: list[float | None]
    record: SimulationCheck


def check_products(
    model: ir.Model, products: Sequence[Simulated], trials: Sequence[Feeds], threads: int | None
) -> ProductErrors:
    """Run a model that also contains the simulations; it gets the differences as additional outputs.

    Raises:
        VerificationFailed: A product differs from its simulation by more than rounding.
    """
    began = time.perf_counter()
    own = len(model.graph.outputs)
    _add_differences(model, products)
    errors: list[float | None] = [None] * len(products)
    allowed = [allowed_error(product.matrix.rows) for product in products]
    with Subject(model).session(threads=threads) as engine:
        for feeds in trials:
            measured = [float(np.asarray(value)) for value in engine.run(feeds)[own:]]
            for number, (difference, size) in enumerate(zip(measured[::2], measured[1::2], strict=True)):
                if math.isfinite(size):  # otherwise the activation has NaN or infinities, as in the source
                    errors[number] = max(errors[number] or 0.0, _relative(difference, size))
        name = engine.name
    shares = [(error or 0.0) / limit for error, limit in zip(errors, allowed, strict=True)]
    worst = max(range(len(products)), key=shares.__getitem__)
    if shares[worst] > 1:
        raise VerificationFailed(
            f"the quantized product {products[worst].node!r} differs from its simulation by {errors[worst]:.2g} of its "
            f"largest result; rounding explains {allowed[worst]:.2g}",
            hint="nothing was written; `keep` its module, and report this",
        )
    compared = sum(error is not None for error in errors)
    record = SimulationCheck(compared, len(trials), shares[worst], name, time.perf_counter() - began)
    return ProductErrors(errors, record)


def _relative(difference: float, size: float) -> float:
    """Return the difference relative to the largest result; infinite if only the quantized product is not finite."""
    if not math.isfinite(difference):
        return math.inf
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def _add_differences(model: ir.Model, products: Sequence[Simulated]) -> None:
    """Add max |result - simulation| and max |simulation| of every product to the outputs of the graph."""
    graph = model.graph
    for number, product in enumerate(products):
        difference = _node(graph, "Sub", product.result, product.simulation)
        for kind, value in (("difference", difference), ("size", product.simulation)):
            largest = ir.node("ReduceMax", [_node(graph, "Abs", value)], {"keepdims": 0})
            output = largest.outputs[0]
            output.name = f"sardonyx_{kind}_{number}"
            output.dtype, output.shape = ir.DataType.FLOAT, ir.Shape([])
            graph.append(largest)
            graph.outputs.append(output)


def _node(graph: ir.Graph, op_type: str, *inputs: ir.Value) -> ir.Value:
    node = ir.node(op_type, list(inputs))
    graph.append(node)
    return node.outputs[0]
