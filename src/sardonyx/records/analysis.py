"""The records of `analyze` and `decompose`: operations, arithmetic, bytes moved and memory for each form of a model.

A torch model has up to three forms: `standard` (as it is), `decomposed` (attention in primitive operations) and `fused`
(attention as one kernel). An ONNX file has one form, named after it. docs/memory.md defines each number. The numbers
hold at the sizes in `Analysis.sizes`; with dynamic dimensions, `Form.formulas` gives them for all sizes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.inspection import Port
from sardonyx.records.run import Environment

ALONE = "alone"  # the region rule of operations that no rule took


class CachePart(msgspec.Struct, frozen=True):
    """Tensors of a cache with equal shapes."""

    tensors: int
    shape: tuple[int | str, ...]  # numbers, dimensions, or formulas of dimensions
    element_bytes: int


class Cache(msgspec.Struct, frozen=True):
    """The key-value cache of a decoder."""

    formula: str  # bytes, for all sizes
    bytes: int | None  # at the sizes of the analysis; None if one of them is unknown
    parts: tuple[CachePart, ...]


class AnalysisSource(msgspec.Struct, frozen=True):
    """One analyzed model."""

    label: str  # the source as the user wrote it
    kind: str  # "torch" | "onnx"
    class_name: str | None  # of a torch module
    inputs: tuple[Port, ...]
    cache: Cache | None = None  # None: it has none, or its shape is unknown


class Work(msgspec.Struct, frozen=True):
    """The totals over all operations."""

    operations: int  # without views
    views: int
    macs: int  # multiply-adds of matrix products, as torch counts them
    flops: int  # 2 × macs and all other arithmetic
    bytes_read: int  # each operation reads each of its operands once, weights included
    bytes_written: int
    parameters: int  # shared ones counted once

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Flops per byte moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


class Alive(msgspec.Struct, frozen=True):
    """A buffer that is alive at the peak."""

    bytes: int
    module: str  # that allocated it
    operation: str  # that allocated it


class Peak(msgspec.Struct, frozen=True):
    """The peak memory of activations, and the step at which it occurs."""

    bytes: int  # of activations
    step: int
    operation: str
    operator: str
    module: str
    workspace: int  # the part of `bytes` that this operation allocates only while it runs
    alive: tuple[Alive, ...]  # the largest buffers, largest first
    others: int  # number of further buffers


class Timeline(msgspec.Struct, frozen=True):
    """Live bytes of activations while each operation runs, thinned if there are very many operations."""

    steps: int
    points: tuple[tuple[int, int], ...]  # (step, bytes); the largest of each interval is kept
    peak_step: int
    peak_operation: str
    peak_module: str


class Memory(msgspec.Struct, frozen=True):
    """The memory that a run needs."""

    weights: int  # bytes of parameters, buffers and constants
    inputs: int
    peak: Peak  # with every activation freed after its last use
    as_run: Peak | None  # with activations freed as in the recorded run; None: not recorded
    timeline: Timeline

    @property
    def total(self) -> int:
        """Weights, inputs and activations at the peak."""
        return self.weights + self.inputs + self.peak.bytes


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that are moved to and from memory."""

    without_fusion: int  # every operation is one kernel
    with_fusion: int  # every region is one kernel

    @property
    def reduction(self) -> float:
        """The share of the bytes that fusing the regions would save."""
        return 1 - self.with_fusion / self.without_fusion if self.without_fusion else 0.0


class RegionRule(msgspec.Struct, frozen=True):
    """All regions of one rule."""

    rule: str
    regions: int
    operations: int  # without views
    largest: int  # operations in the largest region
    flops: int
    internal_bytes: int  # written and read back inside a region
    kept_out_bytes: int  # these, plus repeated reads of inputs: all bytes that fusion would save
    escaping: int  # regions with an inner value that is also read outside, and so is written anyway


class AttentionCost(msgspec.Struct, frozen=True):
    """One attention block, and the operations it consists of in this form."""

    module: str
    written_as: str  # "nn.MultiheadAttention", "scaled_dot_product_attention", "by hand"
    roles: dict[str, int]  # role -> number of nodes


class Crossover(msgspec.Struct, frozen=True):
    """The size of one dimension from which on another operation is the peak, with the other sizes fixed."""

    dim: str
    size: int
    before: str  # the operation that is the peak below that size, and its module
    after: str


class Formulas(msgspec.Struct, frozen=True):
    """The numbers as formulas of the dynamic dimensions."""

    macs: str
    flops: str
    bytes_moved: str
    peak: str  # bytes of activations
    crossovers: tuple[Crossover, ...]


class ModuleCost(msgspec.Struct, frozen=True):
    """The costs of one module, without the modules below it."""

    path: str  # dotted; "" is the model
    kind: str  # its class, if known
    operations: int  # without views
    macs: int
    flops: int
    bytes_moved: int
    parameters: int  # its own; shared ones count for the first module
    at_peak: int  # bytes that it allocated and that are alive at the peak
    peak: int  # maximum of live bytes while one of its operations runs


class OperationCosts(msgspec.Struct, frozen=True):
    """The costs of single operations, in columns and in execution order; those that only view data are left out."""

    names: tuple[str, ...]
    flops: tuple[int, ...]
    bytes_moved: tuple[int, ...]


class Form(msgspec.Struct, frozen=True):
    """The costs of one form of the model."""

    name: str  # "standard" | "decomposed" | "fused" | the label of an ONNX file
    nodes: int | None  # of its graph; None: it was only recorded
    work: Work
    memory: Memory
    traffic: Traffic
    regions: tuple[RegionRule, ...]
    attentions: tuple[AttentionCost, ...]
    formulas: Formulas | None  # None without dynamic dimensions
    modules: tuple[ModuleCost, ...]
    notes: tuple[str, ...] = ()
    operations: OperationCosts | None = None  # None: not recorded

    def figures(self) -> dict[str, float | None]:
        """Return the numbers of the whole form, by their names in CSV and `--fail-if`."""
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
            "regions": sum(rule.regions for rule in self.regions if rule.rule != ALONE),
        }


class Missing(msgspec.Struct, frozen=True):
    """A form that could not be built, and the reason."""

    name: str
    reason: str


class Overtaking(msgspec.Struct, frozen=True):
    """The size of one dimension from which on one form needs more memory than another, with the other sizes fixed."""

    dim: str
    size: int
    less: str  # form
    more: str


class Analysis(Record, frozen=True, tag="analysis"):
    """The analysis of one model, or of several files side by side."""

    title = "an analysis"
    environment: Environment
    options: dict[str, Any]
    sources: tuple[AnalysisSource, ...]
    sizes: dict[str, int]  # of the dynamic dimensions, for which all numbers hold
    forms: tuple[Form, ...]
    missing: tuple[Missing, ...]
    overtaking: tuple[Overtaking, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]


class Decomposed(Record, frozen=True, tag="decomposed"):
    """A model with its attention decomposed into primitive operations."""

    title = "a decomposition"
    source: str
    output: str | None  # None: nothing was written
    nodes_before: int | None  # of the graph of torch.fx's symbolic trace; None: it cannot be traced
    nodes: int
    attentions: tuple[AttentionCost, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]
