"""What a model costs, as plain frozen data: operations, arithmetic, bytes moved and memory, one column for each form.

A torch model has up to three forms, `standard` (as it is), `decomposed` (every attention spelled out), `fused` (every
attention one kernel); an ONNX file has one, named after it. Each number is defined in docs/memory.md. All of them hold
at the sizes in `Analysis.sizes`; where dims are open, `Form.formulas` says the same for every size.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.inspection import Port
from sardonyx.records.run import Environment

ALONE = "alone"  # the rule of what no rule took


class CachePart(msgspec.Struct, frozen=True):
    """Tensors of a cache that are alike."""

    tensors: int
    shape: tuple[int | str, ...]  # a number, a dim, or a formula of dims
    element_bytes: int


class Cache(msgspec.Struct, frozen=True):
    """The keys and values that a decoder keeps from one run to the next."""

    formula: str  # bytes, for every size
    bytes: int | None  # at the sizes of the analysis; None where one of them is not known
    parts: tuple[CachePart, ...]


class AnalysisSource(msgspec.Struct, frozen=True):
    """What was analysed."""

    label: str  # what the user asked for
    kind: str  # "torch" | "onnx"
    class_name: str | None  # of a torch module
    inputs: tuple[Port, ...]
    cache: Cache | None = None  # None: it keeps none, or nothing is known of it


class Work(msgspec.Struct, frozen=True):
    """What all operations do together."""

    operations: int  # without views, which do nothing
    views: int
    macs: int  # multiply-adds of matrix products, as torch counts them
    flops: int  # 2 × macs and all other arithmetic
    bytes_read: int  # each operation reads each of its values once, weights included
    bytes_written: int
    parameters: int  # tied ones once

    @property
    def bytes_moved(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic for each byte moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


class Alive(msgspec.Struct, frozen=True):
    """A piece of memory that is in use at the peak."""

    bytes: int
    module: str  # that made it
    operation: str  # that made it


class Peak(msgspec.Struct, frozen=True):
    """The most memory that activations take at once, and when that is."""

    bytes: int  # activations alone
    step: int
    operation: str
    operator: str
    module: str
    workspace: int  # of `bytes`, what this operation holds only while it runs
    alive: tuple[Alive, ...]  # the largest, largest first
    others: int  # how many smaller ones there are beside


class Timeline(msgspec.Struct, frozen=True):
    """Bytes of activations that are alive while each operation runs, thinned where there are very many."""

    steps: int
    points: tuple[tuple[int, int], ...]  # (step, bytes); the largest of each stretch is kept
    peak_step: int
    peak_operation: str
    peak_module: str


class Memory(msgspec.Struct, frozen=True):
    """What has to be in memory."""

    weights: int  # bytes of parameters, buffers and constants
    inputs: int
    peak: Peak  # every activation let go after its last use
    as_run: Peak | None  # activations let go where torch was seen to let them go; None: not watched
    timeline: Timeline

    @property
    def total(self) -> int:
        """Weights, inputs and activations at the peak."""
        return self.weights + self.inputs + self.peak.bytes


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that go to and from memory."""

    without_fusion: int  # every operation reads and writes memory
    with_fusion: int  # only what enters and leaves a region does

    @property
    def reduction(self) -> float:
        """The share that fusing the regions would keep out of memory."""
        return 1 - self.with_fusion / self.without_fusion if self.without_fusion else 0.0


class RegionRule(msgspec.Struct, frozen=True):
    """All regions that one rule found."""

    rule: str
    regions: int
    operations: int  # without views
    largest: int  # operations in the largest
    flops: int
    internal_bytes: int  # written and read back within
    kept_out_bytes: int  # that, and what comes in and is read again: all that fusing would not move
    escaping: int  # regions with an inner value that is needed elsewhere, and so is written anyway


class AttentionCost(msgspec.Struct, frozen=True):
    """One attention, and what it is made of in this form."""

    module: str
    written_as: str  # "nn.MultiheadAttention", "scaled_dot_product_attention", "by hand"
    roles: dict[str, int]  # role -> nodes


class Crossover(msgspec.Struct, frozen=True):
    """From this size on, with the other dims as they are, another operation is the peak."""

    dim: str
    size: int
    before: str  # the operation that is the peak below, and its module
    after: str


class Formulas(msgspec.Struct, frozen=True):
    """The same numbers for every size of the open dims."""

    macs: str
    flops: str
    bytes_moved: str
    peak: str  # bytes of activations
    crossovers: tuple[Crossover, ...]


class ModuleCost(msgspec.Struct, frozen=True):
    """What one module does itself, not those below it."""

    path: str  # dotted; "" is the model
    kind: str  # its class, where known
    operations: int  # without views
    macs: int
    flops: int
    bytes_moved: int
    parameters: int  # its own; tied ones where they come first
    at_peak: int  # bytes it made that are alive at the peak
    peak: int  # most bytes alive while one of its operations runs


class NotesEstimate(msgspec.Struct, frozen=True):
    """An estimate by an older definition, under which a larger graph looks better; not a saving (docs/memory.md)."""

    peak_bytes: int
    never_freed_bytes: int  # what the "reduction" is taken of
    reduction: float


class Form(msgspec.Struct, frozen=True):
    """One form of the model, whole."""

    name: str  # "standard" | "decomposed" | "fused" | the label of an ONNX file
    nodes: int | None  # of its graph; None: it has none, it was only run
    work: Work
    memory: Memory
    traffic: Traffic
    regions: tuple[RegionRule, ...]
    attentions: tuple[AttentionCost, ...]
    formulas: Formulas | None  # None: no dim is open
    modules: tuple[ModuleCost, ...]
    as_in_notes: NotesEstimate | None = None
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, float | None]:
        """Every number that speaks for the whole form, by the name it has in CSV and in `--fail-if`."""
        work, memory, traffic = self.work, self.memory, self.traffic
        return {
            "nodes": self.nodes,
            "operations": work.operations,
            "views": work.views,
            "macs": work.macs,
            "flops": work.flops,
            "bytes_read": work.bytes_read,
            "bytes_written": work.bytes_written,
            "traffic_bytes": traffic.without_fusion,
            "traffic_if_fused_bytes": traffic.with_fusion,
            "traffic_reduction": traffic.reduction,
            "intensity": work.intensity,
            "parameters": work.parameters,
            "weight_bytes": memory.weights,
            "input_bytes": memory.inputs,
            "activation_bytes": memory.peak.bytes,
            "activation_as_run_bytes": memory.as_run.bytes if memory.as_run else None,
            "peak_bytes": memory.total,
            "attentions": len(self.attentions),
            "regions": sum(each.regions for each in self.regions if each.rule != ALONE),
        }


class Missing(msgspec.Struct, frozen=True):
    """A form that could not be made, and why."""

    name: str
    reason: str


class Overtaking(msgspec.Struct, frozen=True):
    """From this size on, with the other dims as they are, one form needs more memory than another."""

    dim: str
    size: int
    less: str  # form
    more: str


class Analysis(Record, frozen=True, tag="analysis"):
    """One model, or several files side by side."""

    title = "an analysis"
    environment: Environment
    options: dict[str, Any]
    sources: tuple[AnalysisSource, ...]
    sizes: dict[str, int]  # of the open dims, at which all numbers hold
    forms: tuple[Form, ...]
    missing: tuple[Missing, ...]
    overtaking: tuple[Overtaking, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]


class Decomposed(Record, frozen=True, tag="decomposed"):
    """A model with its attention spelled out: the answer of `sardonyx decompose`."""

    title = "a decomposition"
    source: str
    output: str | None  # None: nothing was written
    nodes_before: int | None  # of the graph that torch traces symbolically; None: it traces none
    nodes: int
    attentions: tuple[AttentionCost, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]
