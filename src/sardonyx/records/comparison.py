"""The record of `compare`: how two models differ, module by module."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import OpCount


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
