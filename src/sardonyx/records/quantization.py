"""The record of `quantize`: what was quantized and what not, the check against the simulation, and the loss.

`loss` is that of the result on samples that were used for nothing else. `choice` is there if the modules were chosen
by measurement (`--to auto`, `--budget`): its `groups` say which precision each module got and why, its `points` are the
mixed-precision models that were measured on the way, of which `chosen` is the result.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.bench import Comparison
from sardonyx.records.run import Artifact, Counts, Environment, LoadedDecoder, ModuleCount, RefusalGroup

FLOAT32 = "float32"  # the precision of modules that are kept


class QuantizedProduct(msgspec.Struct, frozen=True):
    """A product or lookup in lower precision."""

    node: str
    module: str  # the module that owns it
    recipe: str
    rows: int  # of the weight: the length of the sums, or the entries of a table; 0: an operator between products
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


class Interval(msgspec.Struct, frozen=True):
    """A number with its 95 % interval over the samples, by bootstrap; all three are equal for a single sample."""

    value: float
    low: float
    high: float


class OutputLoss(msgspec.Struct, frozen=True):
    """How far an output of the result is from that of the source."""

    name: str
    relative_l2: float  # norm of the difference divided by the norm of the source's output, over all samples
    worst_relative_l2: float  # of one sample
    cosine: float
    top1: float | None  # share of rows whose largest element is the same; None: the output has no rows to compare
    rows: int  # along the last axis, over all samples


class Scores(msgspec.Struct, frozen=True):
    """The numbers that a budget limits, with their intervals; those of the output that is worst in each."""

    relative_l2: Interval
    cosine: Interval
    top1: Interval | None = None  # None: no output has rows to compare
    metric: Interval | None = None  # mean drop of the user's metric: source minus result


class MetricMeans(msgspec.Struct, frozen=True):
    """The user's metric, as a mean over the samples."""

    function: str  # FILE.py:FUNCTION
    source: float
    result: float


class Loss(msgspec.Struct, frozen=True):
    """The difference between source and result in the outputs of the model."""

    measured_on: str  # "data": the user's | "generated": random inputs, which say little about a trained model
    samples: int  # runs of the model
    runtime: str  # that ran the result
    outputs: tuple[OutputLoss, ...]
    scores: Scores | None = None  # None: there is no output to compare
    metric: MetricMeans | None = None

    @property
    def relative_l2(self) -> float:
        """The largest relative L2 of an output."""
        return max((output.relative_l2 for output in self.outputs), default=0.0)

    @property
    def top1(self) -> float | None:
        """The lowest top-1 agreement of an output, or None if none has rows."""
        return min((output.top1 for output in self.outputs if output.top1 is not None), default=None)


class DataParts(msgspec.Struct, frozen=True):
    """How many samples each step used. The parts have no sample in common, unless `shared`."""

    kind: str  # "data" | "generated"
    calibrate: int  # 0: no precision of the result needs ranges of activations
    choose: int  # 0: nothing was chosen
    judge: int
    shared: bool = False  # too few samples to divide them: every step used all
    weak: str | None = None  # why the judged loss is a weak claim, in a line; None: it is not


class GroupPrecision(msgspec.Struct, frozen=True):
    """One group of modules in one precision, with all others in float32."""

    precision: str
    scores: Scores  # on the samples to choose with
    bytes: int  # of the constants of the model, less than those of the source if it is smaller
    milliseconds: float | None  # that a run takes less than one of the source; None: not timed
    time: Comparison | None  # of the model in which all groups of the same shape are quantized; None: not timed
    excluded: str | None = None  # why it was no option, such as "not faster"


class ModuleGroup(msgspec.Struct, frozen=True):
    """Modules whose precision is chosen together."""

    name: str  # the module, or one that contains all of them
    modules: tuple[str, ...]  # that own the products
    products: int
    bytes: int  # of the constants of these modules in the source
    shape: int  # groups with the same number have products of the same shapes, and share the measurement of time
    options: tuple[GroupPrecision, ...]
    chosen: str  # a precision, or "float32"
    reason: str  # why, in a few words


class FrontPoint(msgspec.Struct, frozen=True):
    """A mixed-precision model that was measured."""

    label: str  # "mixed 3", "all int8"
    groups: dict[str, int]  # groups by precision, "float32" included
    predicted_l2: float | None  # from the losses of single groups, added in squares; None: not all were measured
    scores: Scores  # on the samples to choose with
    bytes: int  # of constants
    bytes_ratio: float  # to the source's
    predicted_time: float | None  # ratio to the source's, from the times of single shapes; None: nothing was timed
    time: Comparison | None  # with the source, in turns; None: not timed
    within: bool  # the budget
    on_front: bool  # no other point has less loss and is also faster, or smaller if bytes are the objective


class Choice(msgspec.Struct, frozen=True):
    """How the precision of every module was chosen."""

    objective: str  # "time" | "bytes": what is made as small as the budget allows
    budget: tuple[str, ...]  # expressions that the result has to meet
    is_default: bool  # the budget was not given
    precisions: tuple[str, ...]  # that were tried
    sizes: dict[str, int]  # of the dynamic dimensions at which models were timed
    source_milliseconds: float | None  # of a run of the source; None: nothing was timed
    groups: tuple[ModuleGroup, ...]
    points: tuple[FrontPoint, ...]  # by increasing loss
    chosen: int  # index in `points`
    models: int  # how many were built and run
    broken: tuple[str, ...] = ()  # parts of the budget that the judged loss does not meet, a line each


class ModuleRange(msgspec.Struct, frozen=True):
    """The finite numbers that a module computes in float32, as measured before it is converted to fp16."""

    module: str  # "" for inputs of the model
    low: float
    high: float
    kept: bool  # whether a part of it stays in float32 because float16 could overflow


class HalfRisk(msgspec.Struct, frozen=True):
    """A node whose numbers can leave the range of float16: as measured on samples, or as a bound that follows."""

    module: str
    node: str
    reason: str  # which numbers, what they reach on the samples or can reach; or a constant that becomes 0
    kept: bool  # whether the node stays in float32


class Quantization(Record, frozen=True, tag="quantization"):
    """A model in lower precision."""

    title = "a quantization"
    status: str  # "done" | "not met": this is the nearest model to the budget, which was not written
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
    data: DataParts
    loss: Loss  # on the samples to judge with
    seconds: dict[str, float]  # by phase
    choice: Choice | None = None  # None: every module has the same precision, as was asked for
    notes: tuple[str, ...] = ()
    ranges: tuple[ModuleRange, ...] = ()  # of the source, for fp16
    risks: tuple[HalfRisk, ...] = ()  # of the source, for fp16; other nodes stay within its range
    decoder: LoadedDecoder | None = None  # of a folder for generation
