"""The records of `inspect`, `adopt` and `dag`: contents, missed fusions, module tags, graphs of modules."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Counts, How, PassRecord


class Port(msgspec.Struct, frozen=True):
    """A graph input or output."""

    name: str
    type: str  # ONNX type: "float32", "sequence(int64)", …
    shape: (
        tuple[int | str | None, ...] | None
    )  # a name is a dynamic dimension, None an unknown one; None for the whole: unknown rank
    overridable: bool = False  # an input with an initializer as its default


class DynamicDim(msgspec.Struct, frozen=True):
    """A dynamic dimension, and the inputs and outputs that have it."""

    name: str  # its first place if it has no name: "x[0]"
    where: tuple[str, ...]  # "input_ids[0]", …


class OpUse(msgspec.Struct, frozen=True):
    """The number of nodes of an operator, with bodies and functions."""

    domain: str  # "" is standard ONNX
    op_type: str
    count: int


class FunctionUse(msgspec.Struct, frozen=True):
    """A function that the model defines."""

    domain: str
    name: str
    nodes: int
    calls: int


class Body(msgspec.Struct, frozen=True):
    """A subgraph of a control-flow node."""

    node: str
    op_type: str
    attribute: str
    nodes: int


class Module(msgspec.Struct, frozen=True):
    """A module of the source model: what it owns alone, and with all modules below it."""

    path: str
    tag: str
    nodes: int
    total_nodes: int
    parameters: int
    total_parameters: int


class Coverage(msgspec.Struct, frozen=True):
    """The number of nodes by how their modules are known; with Constants, except in an adoption."""

    direct: int  # recorded while a module ran
    inherited: int  # taken from their consumers or producers
    root: int  # unknown, and assigned to the model itself
    own: int  # of the direct ones: run by the forward of the model itself


class RootNode(msgspec.Struct, frozen=True):
    """A node that is assigned to the model itself because its module is unknown, and the reason."""

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
    """The architecture family of a model, by its structure; see docs/fingerprint.md for the definitions."""

    CONVOLUTIONAL = "convolutional"
    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder-decoder"  # both, or a decoder with cross-attention to an input
    VISION_TRANSFORMER = "vision-transformer"
    HYBRID = "hybrid"  # a substantial share of both convolutions and attention
    RECURRENT = "recurrent"
    MLP = "mlp"
    OTHER = "other"


class Features(msgspec.Struct, frozen=True):
    """The counts that a fingerprint is based on: how often each way of mixing positions occurs in the live graph."""

    attention: int  # attention blocks: a Softmax over a product of activations weighs activations
    causal: int  # of these, with a causal mask or a key cache
    cached: int  # of these, with keys that are appended to an input or are an output
    cross: int  # of these, with keys from another source than the queries
    pooling: int  # other Softmaxes that weigh activations: by learned queries, or elementwise
    stem_convolutions: int  # with overlapping windows, before the first attention
    convolutions: int  # with overlapping windows, all others
    flat_convolutions: int  # of both, those along one axis only
    patches: int  # convolutions with windows that do not overlap
    pictures: int  # convolutions over two or more axes
    windows: int  # poolings with overlapping windows and stride 1
    products: int  # matrix products with weights
    mutual_products: int  # matrix products of two activations outside attention
    lookups: int  # embedding lookups
    recurrences: int  # LSTM, GRU, RNN, loops with layers, and unrolled recurrences
    transforms: int  # Fourier transforms


class Fingerprint(msgspec.Struct, frozen=True):
    """The guessed architecture family of a model, from its structure alone."""

    family: Family
    confidence: float  # 0 to 1: the share of the features that support the family
    evidence: tuple[str, ...]  # in words, the most important first
    features: Features


class Inspection(Record, frozen=True, tag="inspection"):
    """One model, inspected without running it."""

    title = "an inspection"
    path: str | None
    file_bytes: int  # of the model file and its external data; 0 for a model in memory
    ir_version: int
    opsets: dict[str, int]
    producer: str
    graph: str  # name of the graph
    fingerprint: Fingerprint
    counts: Counts
    parameters: int  # elements of constants with two or more elements that are not int32, int64, bool or string
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
    # Nodes by what told their modules: "tags", "torch metadata", "scoped names", …
    evidence: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class ModuleInspection(Record, frozen=True, tag="module"):
    """One module of a model, with all modules below it."""

    title = "an inspection of a module"
    model: str
    path: str
    tag: str
    kind: str | None  # qualified class, if known
    calls: tuple[str, ...]  # paths of its calls, if it is called more than once
    nodes: int  # compute nodes, without those shared with other modules
    constants: int  # Constant nodes that it owns or reads
    parameters: int  # of all weights that it reads
    ops: tuple[OpUse, ...]
    inputs: tuple[Port, ...]  # values produced outside
    outputs: tuple[Port, ...]  # values read outside
    weights: tuple[Weight, ...]
    shared_nodes: tuple[str, ...]  # nodes that originate from it and from modules outside it
    modules: tuple[Module, ...]  # it and the modules below it
    coverage: Coverage


class Opportunities(Record, frozen=True, tag="opportunities"):
    """What the passes would rewrite in a model, and what they would skip for which reason."""

    title = "a list of opportunities"
    path: str | None
    target: str
    before: Counts
    after: Counts
    passes: tuple[PassRecord, ...]  # what each would rewrite, where, and what it would skip

    @property
    def found(self) -> int:
        """Return the number of matches that passes would rewrite or skip."""
        return self.left + sum(each.rewrites for each in self.passes)

    @property
    def left(self) -> int:
        """Return the number of matches that passes would skip."""
        return sum(group.count for each in self.passes for group in each.refusals)


class Adoption(Record, frozen=True, tag="adoption"):
    """The module tags that were found in a file, and their coverage."""

    title = "an adoption"
    source: str  # its path, or its name if it was in memory
    output: str | None  # None: nothing was written
    nodes: int  # compute nodes
    modules: int  # that own nodes
    coverage: Coverage
    evidence: dict[str, int]  # nodes by the kind of evidence of their modules; the others are inherited or unknown
    root_nodes: tuple[RootNode, ...]
    attributes: bool  # whether the tags were also written as node attributes
    notes: tuple[str, ...] = ()


Scalar = int | float | str  # NaN and infinities are "nan", "inf", "-inf", since JSON has no such numbers


class TensorValue(msgspec.Struct, frozen=True, tag="tensor", tag_field="kind", omit_defaults=True):
    """A tensor attribute of an operation, with its elements if they are few."""

    dtype: str
    shape: tuple[int, ...]
    value: tuple[Scalar, ...] | None = None  # flat, in row-major order


class BodyValue(msgspec.Struct, frozen=True, tag="body", tag_field="kind"):
    """A graph attribute of an operation: the operations in it."""

    nodes: tuple[str, ...]


AttributeValue = Scalar | tuple[Scalar, ...] | TensorValue | BodyValue


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of the file, with a unique name."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]  # names of values; "" for an omitted optional one
    outputs: tuple[str, ...]
    tags: tuple[str, ...]  # of the owning module, then of all other modules that it originates from
    module_path: str  # instance path of the owner
    how: How
    attributes: dict[str, AttributeValue] = {}
    call: str | None = None  # the path with the number of the call, if it is not the first call


class Initializer(msgspec.Struct, frozen=True):
    """An initializer of the file, usually a weight."""

    dtype: str
    shape: tuple[int, ...]
    tags: tuple[str, ...]  # of every module that reads it, also through a fused node
    users: tuple[str, ...]  # the operations that read it


class ModuleGraph(msgspec.Struct, frozen=True):
    """The operations of one module and of the modules below it, and the edges between them."""

    path: str
    kind: str | None = msgspec.field(name="class")  # the class, qualified if known; None if unknown
    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    children: tuple[str, ...]  # tags of the modules directly below
    inputs: tuple[str, ...]  # values produced outside, without initializers
    outputs: tuple[str, ...]  # values read outside, or outputs of the model


class HierarchyDag(Record, frozen=True, tag="dag"):
    """All modules of a model by tag, and all operations and initializers by name."""

    title = "a graph of modules"
    model: str
    modules: dict[str, ModuleGraph]
    operations: dict[str, Operation]
    initializers: dict[str, Initializer]
    types: dict[str, str] = msgspec.field(
        default_factory=dict[str, str]
    )  # of values: "float[batch,128]", if the rank is known

    def tops(self) -> list[str]:
        """Return the modules without a parent: the model, or the selected ones."""
        below = {child for module in self.modules.values() for child in module.children}
        return [tag for tag in self.modules if tag not in below]

    def producers(self) -> dict[str, tuple[str, int]]:
        """Return the operation that produces each value, and the index of its output."""
        return {
            value: (name, index)
            for name, operation in self.operations.items()
            for index, value in enumerate(operation.outputs)
            if value
        }

    def edges(self) -> list[tuple[str, str]]:
        """Return all edges, each once, also those between selected modules."""
        producers = self.producers()
        uses = ((value, name) for name, operation in self.operations.items() for value in operation.inputs)
        direct = ((producers[value][0], name) for value, name in uses if value in producers)
        return list(dict.fromkeys([*direct, *(edge for tag in self.tops() for edge in self.modules[tag].edges)]))

    def homes(self) -> dict[str, str]:
        """Return the module in which each operation is shown: its owner, or the deepest one if that is not selected."""
        deepest = {name: tag for tag, module in self.modules.items() for name in module.nodes}
        owners = {name: operation.tags[0] for name, operation in self.operations.items()}
        return {name: tag if tag in self.modules else deepest[name] for name, tag in owners.items()}
