"""The records of `export` and `extract`: a model file made from another model, and its verification."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.input_specs import StateTensor
from sardonyx.records.inspection import Coverage, RootNode, Weight
from sardonyx.records.run import Artifact, Counts, Environment, LoadedDecoder, Run, Verdict


class SourceModule(msgspec.Struct, frozen=True):
    """The PyTorch module that was exported."""

    label: str  # the source as the user wrote it
    class_name: str
    modules: int
    parameters: int
    sha256: str | None  # over the names, types, shapes and values of its state


class ExampleInput(msgspec.Struct, frozen=True):
    """One tensor that the module was exported with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    dynamic: dict[int, str]  # axis -> name of the dimension

    def __str__(self) -> str:
        """Return the input as it is written on the command line."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


class OperatorChecks(msgspec.Struct, frozen=True):
    """What is known of the operators that torch.export recorded and the ONNX nodes they became, one by one."""

    operators: int
    distinct: int  # with different arguments, types or nodes; equal ones are decided once
    all_values: int = 0  # equal in exact arithmetic, whatever the values
    orders_tried: int = 0  # equal in exact arithmetic, for the orders of values that were tried
    undecided: dict[str, int] = {}  # by operator and reason
    unequal: tuple[str, ...] = ()  # operators that differ from their nodes in exact arithmetic


class Export(Record, frozen=True, tag="export"):
    """One export of a module to a file."""

    title = "an export"
    status: str  # "done"
    environment: Environment
    options: dict[str, Any]
    module: SourceModule
    inputs: tuple[ExampleInput, ...]
    outputs: tuple[str, ...]
    result: Artifact
    counts: Counts
    modules: int  # modules that own a node
    coverage: Coverage
    root_nodes: tuple[RootNode, ...]
    tied: tuple[Weight, ...]
    verdict: Verdict | None  # of the exported graph against PyTorch; None: not verified
    optimized: Run | None  # of the optimized file against the exported one
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    plain_torch: Counts | None = None  # of the graph after torch's own optimizer, as torch.onnx.export writes it
    unreached: tuple[str, ...] = ()  # outermost modules whose weights no operation read with the example inputs
    # Arguments of forward that are no tensors, and its defaults: constants of the graph.
    fixed: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    state: tuple[StateTensor, ...] = ()  # what forward writes and reads in the next call: inputs and outputs
    operators: OperatorChecks | None = None  # None: not verified, or exported by the tracer
    decoder: LoadedDecoder | None = None  # of a folder for generation

    @property
    def written(self) -> Counts:
        """The size of the graph that was written, which may be optimized."""
        return self.counts if self.optimized is None else self.optimized.after


class BoundaryValue(msgspec.Struct, frozen=True):
    """An input or output of an extracted module."""

    name: str  # the same in both files
    type: str
    shape: tuple[int | str | None, ...] | None
    module: str | None  # the module that produces it; None: an input of the whole model
    live: str | None = None  # its name in the PyTorch module, if one was given


class Extraction(Record, frozen=True, tag="extraction"):
    """One module of a model, extracted as a separate model."""

    title = "an extraction"
    status: str  # "done"
    environment: Environment
    source: Artifact
    result: Artifact
    asked: str  # instance path of the requested module
    path: str  # of the extracted module; a parent of the requested one if fused nodes cross its boundary
    tag: str
    call: int  # index of the call
    calls: int
    counts: Counts
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    straddling: tuple[str, ...]  # fused nodes that cross the boundary of the requested module
    dropped: tuple[str, ...]  # outputs of the PyTorch module that the graph does not compute
    verdict: Verdict | None  # against the whole model; None: not verified
    live: Verdict | None  # against the PyTorch module; None: none was given
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()
