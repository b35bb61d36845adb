"""The records of `compare` and `locate`: how two models differ, and the first module whose outputs differ."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment, OpCount


class Side(msgspec.Struct, frozen=True):
    """One of the two models."""

    name: str
    nodes: int  # compute nodes, with bodies and functions
    constants: int  # Constant nodes, which are not compared: their number depends on the exporter
    initializers: int
    wrapper: str = ""  # a module that contains all nodes and that only this side has; paths omit it


class OpRef(msgspec.Struct, frozen=True):
    """A node, and the instance path of its owning module."""

    name: str
    op_type: str  # with its domain if it is not standard ONNX
    module: str


class Pair(msgspec.Struct, frozen=True):
    """Nodes of the two models that correspond to each other."""

    before: OpRef
    after: OpRef
    what: tuple[str, ...] = ()  # what changed: "perm: [0, 1] → [1, 0]"


class ModuleDifference(msgspec.Struct, frozen=True):
    """What changed in one module, without the modules below it."""

    path: str
    tag: str
    before: int
    after: int
    added: int
    removed: int
    changed: int
    moved: int  # from other modules to this one


class Comparison(Record, frozen=True, tag="comparison"):
    """Two models, aligned."""

    title = "a comparison"
    before: Side
    after: Side
    ops: tuple[OpCount, ...]
    modules: tuple[ModuleDifference, ...]
    only_before: tuple[str, ...]  # topmost modules without nodes in the other model
    only_after: tuple[str, ...]
    added: tuple[OpRef, ...]
    removed: tuple[OpRef, ...]
    moved: tuple[Pair, ...]
    changed: tuple[Pair, ...]

    @property
    def same(self) -> bool:
        """Whether both have the same operators with the same attributes in the same modules."""
        return not (self.added or self.removed or self.moved or self.changed)


class LocatedModel(msgspec.Struct, frozen=True):
    """One of the two models."""

    name: str
    kind: str  # "onnx" or "torch"
    runtime: str


class ModuleShare(msgspec.Struct, frozen=True):
    """The part of the final error that one module, or a few in a row, causes."""

    module: str  # instance path; the lowest common one of `modules`
    share: float  # of the squared error of the outputs
    modules: tuple[str, ...] = ()  # the modules, in order of execution, if there are several
    error: float | None = None  # relative error of the module's last output, root mean square
    alone: float | None = None  # part of the squared error that goes away if only this module is the first model's


class Substitution(msgspec.Struct, frozen=True):
    """A border at which the second model got the first model's values, and the error of the outputs that is left."""

    place: int  # of the border in the order of execution; 0: the inputs
    module: str  # that computes the border value
    value: str  # name of the border value in the second model
    error: float  # relative, root mean square


class DifferingModule(msgspec.Struct, frozen=True):
    """The first module whose outputs differ beyond the tolerance although its inputs do not."""

    module: str  # instance path
    tag: str
    value: str  # name of the output in the second model
    error: float  # relative, root mean square
    reason: str  # the violated rule
    share: float | None  # of the squared error of the outputs; None: it could not be measured
    nodes: tuple[str, ...]  # nodes of the second model between the last equal values and this one
    modules: tuple[str, ...] = ()  # all modules of these nodes if they have no common border in both models


class Location(Record, frozen=True, tag="location"):
    """Where two models begin to differ."""

    title = "a location"
    environment: Environment
    first: LocatedModel
    second: LocatedModel
    same: bool  # the outputs agree within the tolerance
    gradual: bool  # the error accumulates over many modules
    module: DifferingModule | None  # None: the outputs agree
    shares: tuple[ModuleShare, ...]  # largest first
    spread: float  # effective number of modules that cause the error: 1 / sum of squared shares
    error: float  # relative error of the outputs, root mean square
    failures: tuple[str, ...]  # outputs that differ
    trial: str  # the inputs on which the models were compared
    borders: int  # values at module borders that could be compared
    unpaired: tuple[str, ...]  # modules without a border of their own in one of the models
    runs: int  # runs of either model
    substitutions: tuple[Substitution, ...]  # in the order of execution
    peak_bytes: int  # largest memory of the process that runs the models
    seconds: float
    notes: tuple[str, ...] = ()
