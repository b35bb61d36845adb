"""The smallest and largest number of every float32 value of a model, measured while it runs.

The runtime computes both numbers beside each value, so that no activation leaves it: memory is that of one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import is_constant
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.verification.subject import Subject


class Range(Struct, frozen=True):
    """The finite numbers of a value, over all trials."""

    low: float
    high: float
    module: str  # that owns the node which computes it; "" for inputs of the model

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    def joined(self, other: Range) -> Range:
        """Return the range of both."""
        return Range(min(self.low, other.low), max(self.high, other.high), self.module)


Ranges = dict[str, Range]  # by the name of the value


def float_values(graph: Facts) -> list[ir.Value]:
    """Return the float32 values of the main graph that are computed or passed in."""
    main = graph.model.graph
    values = [value for value in main.inputs if not value.is_initializer()]
    values += [value for node in main if not is_constant(node) for value in node.outputs]
    return [value for value in values if value.name and graph.dtype(value) is ir.DataType.FLOAT]


def measure_ranges(graph: Facts, trials: Iterable[Feeds], threads: int | None) -> Ranges:
    """Run a model that is changed for this purpose: it gets the ranges as additional outputs.

    Raises:
        RuntimeFailure: The model rejects the inputs of every trial.
    """
    values = float_values(graph)
    names, observed = [value.name or "" for value in values], Observed(graph.model)
    modules = ["" if (node := value.producer()) is None else owner(node) for value in values]
    _add_ranges(observed, values)
    ranges: Ranges = {}
    failure: RuntimeFailure | None = None
    with Subject(graph.model).session(threads=threads) as engine:
        for feeds in trials:
            try:
                measured = [float(np.asarray(value)) for value in observed.split(engine.run(feeds))[1]]
            except RuntimeFailure as error:
                failure = error
                continue
            rows = zip(names, modules, measured[::2], measured[1::2], strict=True)
            for name, module, low, high in rows:
                found = Range(low, high, module)
                ranges[name] = ranges[name].joined(found) if name in ranges else found
    if failure is not None and not ranges:
        raise failure
    return ranges


def by_module(ranges: Iterable[Range]) -> dict[str, Range]:
    """Return the range of all values that each module computes."""
    modules: dict[str, Range] = {}
    for each in ranges:
        modules[each.module] = modules[each.module].joined(each) if each.module in modules else each
    return modules


def _add_ranges(observed: Observed, values: Sequence[ir.Value]) -> None:
    """Add the least and the largest finite element of each value, and 0, to the outputs of the graph."""
    zero, infinity = observed.constant(np.zeros(1, np.float32)), observed.constant(np.float32(np.inf))
    flat = observed.constant(np.array([-1]))
    for value in values:
        line = observed.compute("Concat", observed.compute("Reshape", value, flat), zero, axis=0)  # never empty
        is_finite = observed.compute("Less", observed.compute("Abs", line), infinity)
        finite = observed.compute("Where", is_finite, line, zero)
        for kind in ("ReduceMin", "ReduceMax"):
            observed.add(observed.compute(kind, finite, keepdims=0), ir.DataType.FLOAT)
