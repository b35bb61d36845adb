"""One export as plain frozen data: what was exported, on which inputs, how nodes got their modules, what was proven."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import msgspec

from sardonyx.records.inspection import Coverage, RootNode, Weight
from sardonyx.records.run import Artifact, Counts, Environment, Run, Verdict

EXPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SourceModule:
    """The PyTorch module as it was identified."""

    label: str  # what the user asked for
    class_name: str
    modules: int
    parameters: int
    sha256: str | None  # over the names, types, shapes and values of its state


@dataclass(frozen=True, slots=True)
class ExampleInput:
    """One tensor the module was exported with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    dynamic: dict[int, str]  # axis -> name of the dim

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Export:
    """One export from module to file."""

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
    verdict: Verdict | None  # of the exported graph against PyTorch; None: not asked for
    optimized: Run | None  # of the optimized file against the exported one
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()  # outermost modules whose weights no operation read on the example inputs
    schema_version: int = EXPORT_VERSION

    def to_json(self) -> bytes:
        """The record as JSON, whatever a subclass carries beside it."""
        plain = {f.name: getattr(self, f.name) for f in fields(Export)}
        if self.optimized is not None:
            plain["optimized"] = {f.name: getattr(self.optimized, f.name) for f in fields(Run)}
        return msgspec.json.encode(plain)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """A record read back."""
        return msgspec.json.decode(data, type=cls)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of an Export."""
    return msgspec.json.schema(Export)
