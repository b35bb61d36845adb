"""The record of `quantize`: what was quantized and what not, the check against the simulation, and the loss."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Artifact, Counts, Environment, ModuleCount, RefusalGroup


class QuantizedProduct(msgspec.Struct, frozen=True):
    """A product or lookup in lower precision."""

    node: str
    module: str  # the module that owns it
    recipe: str
    rows: int  # of the weight: the length of the sums, or the entries of a table
    columns: int
    error: float | None  # largest difference from the simulation, relative to its largest result; None: not finite
    allowed: float  # what rounding may explain


class SimulationCheck(msgspec.Struct, frozen=True):
    """The comparison of every quantized product with its float32 simulation on the activations that it receives."""

    products: int  # that were compared; those whose activations are never finite are not
    trials: int
    worst: float  # of the largest differences, divided by what is allowed; at most 1
    runtime: str
    seconds: float


class OutputLoss(msgspec.Struct, frozen=True):
    """How far an output of the result is from that of the source."""

    name: str
    relative_l2: float  # norm of the difference divided by the norm of the source's output, over all samples
    worst_relative_l2: float  # of one sample
    cosine: float
    top1: float | None  # share of rows whose largest element is the same; None: the output has no rows to compare
    rows: int  # along the last axis, over all samples


class Loss(msgspec.Struct, frozen=True):
    """The difference between source and result in the outputs of the model."""

    measured_on: str  # "data": the user's | "generated": random inputs, which say little about a trained model
    samples: int  # runs of the model
    runtime: str  # that ran the result
    outputs: tuple[OutputLoss, ...]

    @property
    def relative_l2(self) -> float:
        """The largest relative L2 of an output."""
        return max((output.relative_l2 for output in self.outputs), default=0.0)

    @property
    def top1(self) -> float | None:
        """The lowest top-1 agreement of an output, or None if none has rows."""
        return min((output.top1 for output in self.outputs if output.top1 is not None), default=None)


class Quantization(Record, frozen=True, tag="quantization"):
    """A model in lower precision."""

    title = "a quantization"
    status: str  # "done"
    environment: Environment
    options: dict[str, Any]
    source: Artifact
    result: Artifact
    opset_changes: dict[str, tuple[int, int]]
    before: Counts
    after: Counts
    modules: tuple[ModuleCount, ...]
    products: tuple[QuantizedProduct, ...]
    skipped: tuple[RefusalGroup, ...]  # products that were not quantized, by reason
    check: SimulationCheck
    loss: Loss
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()
