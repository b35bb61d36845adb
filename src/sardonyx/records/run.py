"""The record of `optimize`: what each pass did and where, the verification, and the time it took.

Records separate computation from reporting: they hold plain data and depend neither on ONNX nor on torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record


class TuningMeasurement(msgspec.Struct, frozen=True):
    """One measurement: the effect of a change of some units on the best model so far."""

    units: tuple[str, ...]
    does: str  # "undo" | "add" | "restore": the change of these units
    finding: str  # "faster" | "slower" | "no difference" | "same kernels" (nothing to time) | a failure
    ratio: float | None  # time with the change divided by time without; None: not timed
    low: float | None  # ends of the confidence interval
    high: float | None
    floor: float | None  # relative noise: smaller differences are not significant
    rounds: int
    seconds: float  # spent on it, with building and loading the model
    accepted: bool  # whether the change was adopted


class Decision(msgspec.Struct, frozen=True):
    """The choice for one unit of the tuned model: a fusion pass, or all cleanup passes of one family."""

    unit: str
    passes: tuple[str, ...]
    family: str
    rewrites: int  # in the untuned result; 0 if it was not applied there
    choice: str  # "kept" | "undone" | "added" | "left out" | "not examined"
    question: int | None  # index in `questions` of the measurement that decided it


class RelativeTime(msgspec.Struct, frozen=True):
    """The time of one model relative to the source, all measured in the same rounds."""

    name: str  # "source" | "untuned" | "tuned"
    nodes: int
    milliseconds: float  # median of its rounds
    ratio: float  # to the source
    low: float
    high: float
    finding: str


class Tuning(msgspec.Struct, frozen=True):
    """How a result was tuned on a machine."""

    chosen: str  # name of the entry of `standing` that is the result
    why: str
    standing: tuple[RelativeTime, ...]  # of the final measurement
    gain: float | None  # time of the tuned model divided by that of the untuned one; None: tuning changed nothing
    floor: float  # relative noise of the final measurement
    decisions: tuple[Decision, ...]
    questions: tuple[TuningMeasurement, ...]
    sizes: dict[str, int]  # of the dynamic dimensions
    threads: int
    provider: str
    clock: str  # "cpu": CPU time of the model's thread | "wall": elapsed time
    budget: float  # seconds allowed
    seconds: float  # seconds spent
    load: float | None  # runnable processes before the start; None: not reported by the system
    notes: tuple[str, ...] = ()

    @property
    def unexamined(self) -> tuple[str, ...]:
        """The units for which no time was left."""
        return tuple(decision.unit for decision in self.decisions if decision.choice == "not examined")

    @property
    def latency_ratio(self) -> float:
        """The time of the result divided by the time of the source."""
        return next(pace.ratio for pace in self.standing if pace.name == self.chosen)


class WeightSummary(msgspec.Struct, frozen=True):
    """The numbers of a constant."""

    type: str  # "float[768,3072]"
    low: float | None = None  # the smallest finite number; None: not read, because it is large or no number
    high: float | None = None
    histogram: tuple[int, ...] = ()  # how many numbers are in each of equal intervals from `low` to `high`
    not_finite: int = 0


class Wiring(msgspec.Struct, frozen=True):
    """The nodes and edges of a graph, with bodies and functions, without constants.

    It is stored in columns, so that a graph of ten thousand nodes takes about two megabytes.
    """

    modules: tuple[str, ...]  # instance paths of the owners
    names: tuple[str, ...]  # of the nodes, in execution order
    ops: tuple[str, ...]  # operators of the nodes, with the domain if it is not standard ONNX
    owners: tuple[int, ...]  # of the nodes, indices in `modules`
    edges: tuple[tuple[int, int], ...]  # from producer to consumer, indices in `names`; each pair once
    inputs: dict[str, tuple[int, ...]]  # of the graph, with their consumers
    outputs: dict[str, int]  # of the graph, with their producers; -1: a constant or an input
    types: tuple[str, ...] = ()  # of the values: "float[batch,12,64]"; a dimension that is not known is "?"
    edge_types: tuple[int, ...] = ()  # of the edges, indices in `types`; -1: not known; empty: not recorded
    input_types: tuple[int, ...] = ()  # of `inputs`, in their order
    output_types: tuple[int, ...] = ()  # of `outputs`, in their order
    attributes: tuple[dict[str, str], ...] = ()  # of the nodes, as text; empty: not recorded, as are the next four
    operands: tuple[tuple[str, ...], ...] = ()  # names of the inputs of the nodes; "" for an omitted one
    results: tuple[tuple[str, ...], ...] = ()  # names of their outputs
    value_types: dict[str, int] = {}  # of operands and results, indices in `types`; left out: not known
    weights: dict[str, WeightSummary] = {}  # constants that nodes read


class AttentionForm(msgspec.Struct, frozen=True):
    """How an attention block is represented in one graph."""

    operator: str  # "Attention", "com.microsoft::MultiHeadAttention"; "" if it is decomposed
    nodes: tuple[str, ...]  # names of its nodes, in execution order


class AttentionSite(msgspec.Struct, frozen=True):
    """One attention block of a model, before and after optimization."""

    module: str  # instance path of the owning module
    heads: int | None  # of the queries; None: not determined by the graph
    key_value_heads: int | None
    head_size: int | None
    mask: str  # "none", "causal", "from an input", "causal and from an input", "a constant", …
    causal: bool
    cached: bool  # the keys are appended to an input, or are an output
    cross: bool  # the keys come from another source than the queries
    before: AttentionForm | None  # None: not found there
    after: AttentionForm | None
    why: str = ""  # why it is still decomposed: the reason of the pass that nearly matched


class Accuracy(StrEnum):
    """How a pass may change the results."""

    EXACT = "exact"  # identical bits
    REASSOCIATES = "reassociates"  # the same function of real numbers; rounding may differ
    APPROXIMATES = "approximates"  # an approximation of the function
    QUANTIZES = "quantizes"  # in lower precision on purpose: the loss is measured and not bounded by a tolerance


class How(StrEnum):
    """How the module of a node is known."""

    DIRECT = "direct"  # recorded while the module ran
    INHERITED = "inherited"  # taken from its consumers or producers
    ROOT = "root"  # unknown, and assigned to the model itself


class RewriteKind(StrEnum):
    """How a rewrite treats the provenance of the nodes it removes."""

    FUSE = "fuse"  # new nodes replace the old ones and inherit their origins
    SHARE = "share"  # an equal node replaces it and inherits its origins
    FOLD = "fold"  # a constant replaces it and inherits its origins
    BYPASS = "bypass"  # the node had no effect; nothing inherits its origins
    DROP = "drop"  # the result was not used


class NodeRef(msgspec.Struct, frozen=True):
    """A node by name and operator, with its inputs and outputs at the time."""

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()  # names of values; "" for an omitted optional one
    outputs: tuple[str, ...] = ()
    owner: str = ""  # instance path of its module


class Event(msgspec.Struct, frozen=True):
    """One rewrite."""

    pass_name: str
    kind: RewriteKind
    root: str  # name of the first replaced value, which identifies the rewrite within its pass
    before: tuple[NodeRef, ...]
    after: tuple[NodeRef, ...]
    origins: tuple[str, ...]  # modules of the replaced nodes
    owner: str  # their lowest common module
    graph: str  # "" for the main graph, otherwise the node and attribute of the body
    source: str  # file:line of the pass


class Refusal(msgspec.Struct, frozen=True):
    """Why a pass that nearly matched was not applied."""

    pass_name: str
    reason: str
    nodes: tuple[str, ...]
    owner: str


class RefusalGroup(msgspec.Struct, frozen=True):
    """Refusals of one pass for one reason."""

    reason: str
    count: int
    examples: tuple[str, ...]
    modules: dict[str, int] = {}  # refusals by owning module


class Counts(msgspec.Struct, frozen=True):
    """The size of a graph, with bodies of control flow and functions."""

    nodes: int  # compute nodes
    constants: int  # Constant nodes, counted separately: their number depends on the exporter
    initializers: int
    bytes: int  # of all constant data


class PassRecord(msgspec.Struct, frozen=True):
    """What one pass did in the whole run."""

    name: str
    algebra: str
    accuracy: Accuracy
    rewrites: int
    nodes: int  # change in the number of compute nodes; negative is fewer
    constants: int
    initializers: int
    bytes: int
    seconds: float
    modules: dict[str, int]  # rewrites by owning module
    refusals: tuple[RefusalGroup, ...]
    about: str = ""  # its documentation: when it refuses and why it helps


class OutputDifference(msgspec.Struct, frozen=True):
    """The largest difference of one graph output over all trials."""

    name: str
    dtype: str
    max_abs: float
    max_rel: float
    max_ulp: float
    rtol: float
    atol: float
    passed: bool
    error: float = 0.0  # at the element with the largest error relative to its tolerance
    allowed: float = 0.0  # the tolerance at that element
    where: tuple[int, ...] = ()  # the index of that element


class Trial(msgspec.Struct, frozen=True):
    """One run of both models on one set of inputs."""

    seed: int | None  # of random inputs; None: inputs given by the user
    dims: dict[str, int]  # sizes of the dynamic dimensions
    style: str  # how the values were generated
    passed: bool
    failures: tuple[str, ...]


class RuntimeCheck(msgspec.Struct, frozen=True):
    """The check on a second runtime, and the cause of differences."""

    runtime: str
    trials: int  # in which it ran both models
    from_rewrite: tuple[str, ...] = ()  # the two models differ on this runtime
    from_runtime: tuple[str, ...] = ()  # the runtimes differ on the reference model
    not_run: str = ""  # why it did not run all trials


class RequestedTolerance(msgspec.Struct, frozen=True):
    """The check within a tolerance that the user requested: |reference - result| ≤ atol + rtol · |reference|."""

    rtol: float
    atol: float
    passed: bool
    failures: tuple[str, ...]


class RewriteClaims(msgspec.Struct, frozen=True):
    """How many rewrites are known to be equal, and in which sense."""

    rewrites: int
    all_values: int = 0  # equal in exact arithmetic, whatever the values
    for_every_size: int = 0  # of these, equal for every size of the dynamic dimensions, not only those tried
    at_smaller_sizes: int = 0  # of these, decided with smaller numbers in place of fixed sizes that the nodes name
    orders_tried: int = 0  # equal in exact arithmetic, for the orders of values that were tried
    by_trials: int = 0  # with matching results on separate inputs
    not_runnable: int = 0  # neither decided in exact arithmetic nor possible to run separately
    failed: int = 0  # rewrites whose check ended with an error
    rounded: int = 0  # which store numbers that they compute


class RewriteChecks(RewriteClaims, frozen=True):
    """What is known of the rewrites one by one."""

    distinct: int = 0  # with different structure; equal ones are verified once
    rounding_units: float | None = (
        0.0  # in the last place, from their exact values at most; None: a sum of them cancels
    )
    error: str = ""  # the first of the errors
    undecided: dict[str, int] = {}  # by pass and reason: rewrites that exact arithmetic does not decide
    passes: dict[str, RewriteClaims] = {}  # by pass


class TokenTie(msgspec.Struct, frozen=True):
    """A generated token that differs because the two largest logits differ by less than rounding."""

    row: int  # of the batch
    step: int
    token: int  # of PyTorch
    other: int  # of the exported model
    gap: float  # between their logits in PyTorch


class LoadedDecoder(msgspec.Struct, frozen=True):
    """A folder for generation, loaded as users load it."""

    runtime: str
    tokens_per_second: float | None  # of one sequence, without the prompt, on this machine; None: none were generated
    cache_bytes: int  # of the keys and values of one position of one sequence


class GeneratedBatch(msgspec.Struct, frozen=True):
    """The comparison of tokens generated by the exported model with its cache and by PyTorch, for one batch."""

    prompts: tuple[int, ...]  # their lengths; shorter ones are padded on the left
    steps: int
    equal: int  # equal tokens, of prompts times steps
    max_abs: float  # largest difference of a logit over all steps
    ties: tuple[TokenTie, ...]  # differing tokens although all logits are within the tolerance
    passed: bool


class Verdict(Record, frozen=True, tag="verdict"):
    """Whether two models match, and how that was verified."""

    title = "a verdict"
    passed: bool
    reference: str  # the engine that ran the reference
    accuracy: Accuracy  # the least accurate class of the rewrites
    trials: tuple[Trial, ...]
    outputs: tuple[OutputDifference, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()  # remarks, also on what was not covered
    seconds: float = 0.0
    not_covered: tuple[str, ...] = ()  # branches, sizes, values and masked rows that the trials did not reach
    runtimes: tuple[RuntimeCheck, ...] = ()  # further runtimes that were requested
    rewrites: RewriteChecks | None = None  # None: there were none, or they are unknown
    computed_in: str | None = None  # the type in which both models were run, if it is not their own
    generation: tuple[GeneratedBatch, ...] = ()  # for a decoder exported for generation
    requested: RequestedTolerance | None = None  # None: the user requested no tolerance

    @property
    def accepted(self) -> bool:
        """Whether the models match within the requested tolerance, or else within ours."""
        return self.passed if self.requested is None else self.requested.passed


class RolledBack(msgspec.Struct, frozen=True):
    """A rewrite that failed verification and was undone."""

    pass_name: str
    root: str
    owner: str
    reason: str
    reproducer: str | None = None  # the folder with the smallest excerpt that shows the difference; None: not written


class Artifact(msgspec.Struct, frozen=True):
    """The identity of a model file or of a model in memory."""

    path: str | None
    sha256: str | None
    bytes: int
    ir_version: int
    opsets: dict[str, int]


class OpCount(msgspec.Struct, frozen=True):
    """The number of nodes of one operator before and after."""

    op_type: str
    before: int
    after: int


class ModuleCount(msgspec.Struct, frozen=True):
    """What a module owns, without its children."""

    path: str
    tag: str
    before: int  # compute nodes
    after: int
    parameters: int = 0  # of the source
    bytes_before: int = 0  # of constants; one that several modules read counts for their lowest common module
    bytes_after: int = 0


class Environment(msgspec.Struct, frozen=True):
    """When, where, with which package versions and by which command a record was made."""

    sardonyx: str
    python: str
    platform: str
    cpus: int
    packages: dict[str, str]
    date: str = ""  # UTC in ISO 8601: "2026-11-17T07:50:03Z"; "": not recorded
    command: tuple[str, ...] = ()  # words of the command line; empty for a call from Python
    configured: dict[str, Any] = {}  # options of the command that a file set: sardonyx.toml or pyproject.toml
    configuration: str = ""  # that file


class ArchitectureGuess(msgspec.Struct, frozen=True):
    """The guessed architecture family of a model, from its structure alone."""

    family: str
    confidence: float  # 0 to 1
    evidence: tuple[str, ...]


class Run(Record, frozen=True, tag="run"):
    """One optimization from file to file."""

    title = "an optimization"
    status: str  # "done" | "verification-failed"
    environment: Environment
    options: dict[str, Any]
    source: Artifact
    result: Artifact
    opset_changes: dict[str, tuple[int, int]]
    before: Counts
    after: Counts
    ops: tuple[OpCount, ...]
    modules: tuple[ModuleCount, ...]
    passes: tuple[PassRecord, ...]
    events: tuple[Event, ...]
    rolled_back: tuple[RolledBack, ...]
    verdict: Verdict | None  # None: not verified
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()  # remarks
    fingerprint: ArchitectureGuess | None = None  # of the source; None: not determined
    tuning: Tuning | None = None  # None: not tuned
    wiring_before: Wiring | None = None  # None: not recorded
    wiring_after: Wiring | None = None
    attention: tuple[AttentionSite, ...] = ()
