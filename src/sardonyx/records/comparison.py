"""How two models differ, module by module, as plain frozen data: the answer of `compare`. Nothing here knows ONNX."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import OpCount


class Side(msgspec.Struct, frozen=True):
    """One of the two models."""

    name: str
    nodes: int  # compute nodes, bodies and functions included
    constants: int  # Constant nodes, which are counted and not compared: how many there are is exporter style
    initializers: int
    wrapper: str = ""  # a module around everything that only this side has; paths are given without it


class OpRef(msgspec.Struct, frozen=True):
    """A node, and the instance path of the module that owns it."""

    name: str
    op_type: str  # with its domain where it is not ONNX's own
    module: str


class Pair(msgspec.Struct, frozen=True):
    """The same work in both models."""

    before: OpRef
    after: OpRef
    what: tuple[str, ...] = ()  # what changed: "perm: [0, 1] → [1, 0]"


class ModuleDifference(msgspec.Struct, frozen=True):
    """What changed in one module itself, not in those below it."""

    path: str
    tag: str
    before: int
    after: int
    added: int
    removed: int
    changed: int
    moved: int  # to here


class Comparison(Record, frozen=True, tag="comparison"):
    """Two models, aligned."""

    title = "a comparison"
    before: Side
    after: Side
    ops: tuple[OpCount, ...]
    modules: tuple[ModuleDifference, ...]
    only_before: tuple[str, ...]  # topmost modules that run nothing in the other model
    only_after: tuple[str, ...]
    added: tuple[OpRef, ...]
    removed: tuple[OpRef, ...]
    moved: tuple[Pair, ...]
    changed: tuple[Pair, ...]

    @property
    def same(self) -> bool:
        """Whether both run the same operators with the same attributes in the same modules."""
        return not (self.added or self.removed or self.moved or self.changed)
