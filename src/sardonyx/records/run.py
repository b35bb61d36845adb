"""One Run as plain frozen data: what was read, what each pass did where, what was proven, what it cost.

Everything that computes ends here and everything that renders starts here. Nothing in this file knows ONNX or torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.tuning import Tuning

# What a graph is made of and where it attends, as plain data that a Run keeps: enough to draw any module of it.
#
# Nothing here knows ONNX. Columns instead of objects: a graph of ten thousand nodes stays a megabyte.


class Wiring(msgspec.Struct, frozen=True):
    """Which node of a graph feeds which. Constants are left out, bodies and functions are in."""

    modules: tuple[str, ...]  # instance paths of the owners
    names: tuple[str, ...]  # of the nodes, in the order they run
    ops: tuple[str, ...]  # theirs, with the domain where it is not ONNX's own
    owners: tuple[int, ...]  # places in `modules`
    edges: tuple[tuple[int, int], ...]  # from maker to reader, places in `names`; each pair once
    inputs: dict[str, tuple[int, ...]]  # of the graph, and who reads them
    outputs: dict[str, int]  # of the graph, and who makes them; -1: a constant or an input


class AttentionForm(msgspec.Struct, frozen=True):
    """How an attention is written in one graph."""

    operator: str  # "Attention", "com.microsoft::MultiHeadAttention"; "" where it is spelled out in parts
    nodes: tuple[str, ...]  # names of the nodes that are it, in the order they run


class AttentionSite(msgspec.Struct, frozen=True):
    """One place where a model attends, before and after."""

    module: str  # instance path of its owner
    heads: int | None  # of the queries; None: the graph does not say
    key_value_heads: int | None
    head_size: int | None
    mask: str  # "none", "causal", "from an input", "causal and from an input", "a constant", … in words
    causal: bool
    cached: bool  # continues keys that are handed in, or hands them out
    cross: bool  # keys come from elsewhere than the queries
    before: AttentionForm | None  # None: not found there
    after: AttentionForm | None
    why: str = ""  # where it is still spelled out: what the pass said that came near


class Accuracy(StrEnum):
    """What a pass may do to the numbers."""

    EXACT = "exact"  # bit for bit the same result
    REASSOCIATES = "reassociates"  # same real-number function, other rounding
    APPROXIMATES = "approximates"  # another function, close by


class How(StrEnum):
    """How the module of a node was found."""

    DIRECT = "direct"  # the module was seen running it
    INHERITED = "inherited"  # no module ran it; it belongs to what it feeds, or to what feeds it
    ROOT = "root"  # neither is known, and it counts to the model itself


class RewriteKind(StrEnum):
    """How a rewrite treats the provenance of the nodes it removes."""

    FUSE = "fuse"  # new nodes do the work of the old ones and inherit their origins
    SHARE = "share"  # an existing node now works for its twin's modules too
    FOLD = "fold"  # a constant holds the result and inherits the origins
    BYPASS = "bypass"  # the node computed nothing; nothing inherits
    DROP = "drop"  # nothing used the result


class NodeRef(msgspec.Struct, frozen=True):
    """A node by name and operator, as a person would look it up in a viewer, and what it read and made at the time."""

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()  # names of values; "" where an optional one is left out
    outputs: tuple[str, ...] = ()
    owner: str = ""  # instance path of its module


class Event(msgspec.Struct, frozen=True):
    """One rewrite."""

    pass_name: str
    kind: RewriteKind
    root: str  # name of the first value the rewrite replaced: the rewrite's stable key within its pass
    before: tuple[NodeRef, ...]
    after: tuple[NodeRef, ...]
    origins: tuple[str, ...]  # modules the replaced nodes came from
    owner: str  # their lowest common module
    graph: str  # "" for the main graph, else where the body hangs
    source: str  # file:line of the pass


class Refusal(msgspec.Struct, frozen=True):
    """Why a pass that nearly matched did not apply."""

    pass_name: str
    reason: str
    nodes: tuple[str, ...]
    owner: str


class RefusalGroup(msgspec.Struct, frozen=True):
    """Refusals of one pass with one reason."""

    reason: str
    count: int
    examples: tuple[str, ...]
    modules: dict[str, int] = {}  # refusals by owner module


class Counts(msgspec.Struct, frozen=True):
    """The size of a graph, bodies of control flow and functions included."""

    nodes: int  # compute nodes
    constants: int  # Constant nodes, counted apart: how many there are is exporter style
    initializers: int
    bytes: int  # of all constant data, wherever it is stored


class PassRecord(msgspec.Struct, frozen=True):
    """What one pass did over the whole run."""

    name: str
    algebra: str
    accuracy: Accuracy
    rewrites: int
    nodes: int  # change in compute nodes; negative is fewer
    constants: int
    initializers: int
    bytes: int
    seconds: float
    modules: dict[str, int]  # rewrites by owner module
    refusals: tuple[RefusalGroup, ...]
    about: str = ""  # when it refuses and why it helps, as its author says


class OutputDifference(msgspec.Struct, frozen=True):
    """The worst difference seen at one graph output over all trials."""

    name: str
    dtype: str
    max_abs: float
    max_rel: float
    max_ulp: float
    rtol: float
    atol: float
    passed: bool
    error: float = 0.0  # at the element that comes closest to its limit, or exceeds it most
    allowed: float = 0.0  # what is allowed there
    where: tuple[int, ...] = ()  # its index


class Trial(msgspec.Struct, frozen=True):
    """One pair of runs on one set of drawn inputs."""

    seed: int | None  # None: inputs given by the user
    dims: dict[str, int]  # the size every dynamic dim had
    style: str  # what kind of values were drawn
    passed: bool
    failures: tuple[str, ...]


class RuntimeCheck(msgspec.Struct, frozen=True):
    """What a second runtime computes for both models, and where a disagreement comes from."""

    runtime: str
    trials: int  # on which it ran both models
    from_rewrite: tuple[str, ...] = ()  # the two models differ on it
    from_runtime: tuple[str, ...] = ()  # on the reference alone it differs from the first runtime
    not_run: str = ""  # why it ran fewer trials than there are


class RewriteChecks(msgspec.Struct, frozen=True):
    """How many rewrites were also checked one by one, on values of their own."""

    rewrites: int
    distinct: int  # of different structure; equal ones are checked once
    matching: int  # rewrites whose nodes match before and after
    not_runnable: int  # whose nodes cannot be run by themselves
    left_out: int  # for lack of time


class TokenTie(msgspec.Struct, frozen=True):
    """A generated token that differs because the two best logits are closer than rounding can tell."""

    row: int  # of the batch
    step: int
    token: int  # PyTorch's
    other: int  # the exported model's
    gap: float  # between their logits in PyTorch


class GeneratedBatch(msgspec.Struct, frozen=True):
    """Tokens that were generated by the exported model with its cache and by PyTorch, from prompts side by side."""

    prompts: tuple[int, ...]  # their lengths; shorter ones are padded on the left
    steps: int
    equal: int  # tokens, of prompts times steps
    max_abs: float  # the largest difference of a logit over all steps
    ties: tuple[TokenTie, ...]  # where tokens differ and all logits are within the tolerance; else what differs
    passed: bool


class Verdict(Record, frozen=True, tag="verdict"):
    """Whether two models are the same function, and how that was found out."""

    title = "a verdict"
    passed: bool
    reference: str  # which engine ran the reference
    accuracy: Accuracy  # the loosest class of the rewrites in between
    trials: tuple[Trial, ...]
    outputs: tuple[OutputDifference, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what a reader should know besides, what was not covered included
    seconds: float = 0.0
    not_covered: tuple[str, ...] = ()  # what the trials did not reach: branches, sizes, values, masked rows
    runtimes: tuple[RuntimeCheck, ...] = ()  # further ones that were asked for
    rewrites: RewriteChecks | None = None  # None: there were none, or the models came without
    computed_in: str | None = None  # the type that both sides were computed in, where it is not their own
    generation: tuple[GeneratedBatch, ...] = ()  # of a decoder that was exported for generation


class RolledBack(msgspec.Struct, frozen=True):
    """A rewrite that failed its proof and was undone."""

    pass_name: str
    root: str
    owner: str
    reason: str


class Artifact(msgspec.Struct, frozen=True):
    """A model file, or a model in memory, as it was identified."""

    path: str | None
    sha256: str | None
    bytes: int
    ir_version: int
    opsets: dict[str, int]


class OpCount(msgspec.Struct, frozen=True):
    """How many nodes of one operator there were and are."""

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
    bytes_before: int = 0  # of constants; one that several modules read is their lowest common module's
    bytes_after: int = 0


class Environment(msgspec.Struct, frozen=True):
    """Where the run took place."""

    sardonyx: str
    python: str
    platform: str
    cpus: int
    packages: dict[str, str]


class ArchitectureGuess(msgspec.Struct, frozen=True):
    """What a model looks like, from its structure alone."""

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
    verdict: Verdict | None  # None: verification was switched off
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()  # what a reader should know besides
    fingerprint: ArchitectureGuess | None = None  # of the source; None: nobody looked
    tuning: Tuning | None = None  # None: nothing was measured
    wiring_before: Wiring | None = None  # None: nobody looked
    wiring_after: Wiring | None = None
    attention: tuple[AttentionSite, ...] = ()
