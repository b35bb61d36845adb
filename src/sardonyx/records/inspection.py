"""What a model is made of, and could be, as plain data: what `inspect` and `adopt` answer. Nothing here knows ONNX."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Counts, PassRecord


class Port(msgspec.Struct, frozen=True):
    """A graph input or output."""

    name: str
    type: str  # "float32", "sequence(int64)", … as ONNX spells its types
    shape: tuple[int | str | None, ...] | None  # a name is a symbolic dim, None an unknown one; None alone: no rank
    overridable: bool = False  # an input with an initializer behind it


class DynamicDim(msgspec.Struct, frozen=True):
    """A dim that is only known at run time, and where the interface has it."""

    name: str  # "?" for one without a name
    where: tuple[str, ...]  # "input_ids[0]", …


class OpUse(msgspec.Struct, frozen=True):
    """How often an operator occurs, bodies and functions included."""

    domain: str  # "" is standard ONNX
    op_type: str
    count: int


class FunctionUse(msgspec.Struct, frozen=True):
    """A function the model defines itself."""

    domain: str
    name: str
    nodes: int
    calls: int


class Body(msgspec.Struct, frozen=True):
    """A subgraph that hangs on a control-flow node."""

    node: str
    op_type: str
    attribute: str
    nodes: int


class Module(msgspec.Struct, frozen=True):
    """A module of the source model: what it owns itself, and with everything below it."""

    path: str
    tag: str
    nodes: int
    total_nodes: int
    parameters: int
    total_parameters: int


class Coverage(msgspec.Struct, frozen=True):
    """How the modules of the nodes are known, Constants included."""

    direct: int  # a module was seen running them
    inherited: int  # they belong to what they feed, or to what feeds them
    root: int  # neither is known, and they count to the model itself
    own: int  # of the direct ones: run by the model's own forward, in no module of it


class RootNode(msgspec.Struct, frozen=True):
    """A node that counts to the model itself because nothing better is known, and why."""

    name: str
    op_type: str
    reason: str


class Weight(msgspec.Struct, frozen=True):
    """An initializer, and every module that reads it."""

    name: str
    type: str
    shape: tuple[int, ...]
    parameters: int
    modules: tuple[str, ...]  # instance paths


class Family(StrEnum):
    """What a network is by its structure; docs/fingerprint.md says where the borders are."""

    CONVOLUTIONAL = "convolutional"
    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder-decoder"  # whole, or a decoder that reads a memory
    VISION_TRANSFORMER = "vision-transformer"
    HYBRID = "hybrid"  # convolutions and attention, a good part of each
    RECURRENT = "recurrent"
    MLP = "mlp"
    OTHER = "other"


class Features(msgspec.Struct, frozen=True):
    """What a fingerprint is told by: how often each way of mixing positions occurs in the live part of a graph."""

    attention: int  # places where activations are weighed by a Softmax over products of activations
    causal: int  # of these, where a position sees only what comes before it
    cached: int  # of these, whose keys continue ones that are handed in, or are handed out
    cross: int  # of these, whose keys come from elsewhere than the queries
    pooling: int  # a Softmax that weighs activations otherwise: by learned queries, or along one axis
    stem_convolutions: int  # with windows that overlap, before the first attention
    convolutions: int  # with windows that overlap, all others
    flat_convolutions: int  # of all of these, along one axis only
    patches: int  # convolutions or poolings with windows that do not overlap
    pictures: int  # convolutions over two or more axes, with any window larger than one
    windows: int  # poolings that keep the size
    products: int  # with weights
    mutual_products: int  # of activations with activations, outside attention
    lookups: int  # of rows of weights by integers
    recurrences: int  # LSTM, GRU, RNN, loops that carry a state, and steps that are written out
    transforms: int  # of Fourier


class Fingerprint(msgspec.Struct, frozen=True):
    """The family of a model, told from structure alone."""

    family: Family
    confidence: float  # 0 to 1: how much of what was found speaks for the family
    evidence: tuple[str, ...]  # in words, the weightiest first
    features: Features


class Inspection(Record, frozen=True, tag="inspection"):
    """One model, looked at without running it."""

    title = "an inspection"
    path: str | None
    file_bytes: int  # of the model file and its external data; 0 for a model in memory
    ir_version: int
    opsets: dict[str, int]
    producer: str
    graph: str  # its name
    fingerprint: Fingerprint
    counts: Counts
    parameters: int  # elements of weights: constants of two or more that are not int32, int64, bool or string
    ops: tuple[OpUse, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dynamic_dims: tuple[DynamicDim, ...]
    functions: tuple[FunctionUse, ...]
    bodies: tuple[Body, ...]
    modules: tuple[Module, ...]
    coverage: Coverage
    root_nodes: tuple[RootNode, ...]
    tied: tuple[Weight, ...]  # weights that several modules read
    metadata: dict[str, str]


class ModuleInspection(Record, frozen=True, tag="module"):
    """One module of a model, with everything below it."""

    title = "an inspection of a module"
    model: str
    path: str
    tag: str
    kind: str | None  # qualified class, where the file knows it
    calls: tuple[str, ...]  # the paths of its calls, where it is called more than once
    nodes: int  # compute nodes; a node that other modules share is not among them
    constants: int  # Constants that its nodes read or that are its own
    parameters: int  # of all weights its nodes read
    ops: tuple[OpUse, ...]
    inputs: tuple[Port, ...]  # what it takes from elsewhere
    outputs: tuple[Port, ...]  # what is read elsewhere
    weights: tuple[Weight, ...]
    shared_nodes: tuple[str, ...]  # nodes that do its work and that of modules outside it
    modules: tuple[Module, ...]  # it and those below it
    coverage: Coverage


class WhyLeft(msgspec.Struct, frozen=True):
    """Why places of a pattern are left: a pass that came near them and what it said."""

    pass_name: str | None  # None: no pass came near
    reason: str
    count: int
    modules: dict[str, int]  # places by owner module
    examples: tuple[str, ...]  # the last node of some of the places


class PatternCount(msgspec.Struct, frozen=True):
    """How often a pattern is in a model as it is, and how often once every pass has run."""

    name: str
    what: str
    made: bool  # what fusions make, so that more of it is better
    before: int
    after: int
    modules: dict[str, int]  # places before, by owner module
    why: tuple[WhyLeft, ...]  # of the places after; empty for what fusions make


class Opportunities(Record, frozen=True, tag="opportunities"):
    """What could be fused or dropped in a model, and why what could not."""

    title = "a list of opportunities"
    path: str | None
    target: str
    before: Counts
    after: Counts
    patterns: tuple[PatternCount, ...]
    passes: tuple[PassRecord, ...]  # what each pass would do, where, and what it would refuse


class Adoption(Record, frozen=True, tag="adoption"):
    """What a file said about its modules, and how far that went."""

    title = "an adoption"
    source: str  # its path, or its name where it came from memory
    output: str | None  # None: nothing was written
    nodes: int  # Constants included
    modules: int  # that own nodes
    coverage: Coverage
    evidence: dict[str, int]  # what told, and how many nodes it told of; the others inherited, or count to the model
    root_nodes: tuple[RootNode, ...]
    attributes: bool  # the tags were written as node attributes too
