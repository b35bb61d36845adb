"""How two models differ, module by module, as plain frozen data: the answer of `compare`. Nothing here knows ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import msgspec

from sardonyx.records.run import OpCount

COMPARISON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models."""

    name: str
    nodes: int  # compute nodes, bodies and functions included
    constants: int  # Constant nodes, which are counted and not compared: how many there are is exporter style
    initializers: int
    wrapper: str = ""  # a module around everything that only this side has; paths are given without it


@dataclass(frozen=True, slots=True)
class OpRef:
    """A node, and the instance path of the module that owns it."""

    name: str
    op_type: str  # with its domain where it is not ONNX's own
    module: str


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work in both models."""

    before: OpRef
    after: OpRef
    what: tuple[str, ...] = ()  # what changed: "perm: [0, 1] → [1, 0]"


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """What changed in one module itself, not in those below it."""

    path: str
    tag: str
    before: int
    after: int
    added: int
    removed: int
    changed: int
    moved: int  # to here


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models, aligned."""

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
    schema_version: int = COMPARISON_VERSION

    @property
    def same(self) -> bool:
        """Whether both run the same operators with the same attributes in the same modules."""
        return not (self.added or self.removed or self.moved or self.changed)

    def to_json(self) -> bytes:
        """The comparison as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """A comparison read back."""
        return msgspec.json.decode(data, type=cls)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a Comparison."""
    return msgspec.json.schema(Comparison)
