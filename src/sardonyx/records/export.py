"""One export as plain frozen data: what was exported, on which inputs, how nodes got their modules, what was proven."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.inspection import Coverage, RootNode, Weight
from sardonyx.records.run import Artifact, Counts, Environment, Run, Verdict


class SourceModule(msgspec.Struct, frozen=True):
    """The PyTorch module as it was identified."""

    label: str  # what the user asked for
    class_name: str
    modules: int
    parameters: int
    sha256: str | None  # over the names, types, shapes and values of its state


class ExampleInput(msgspec.Struct, frozen=True):
    """One tensor the module was exported with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    dynamic: dict[int, str]  # axis -> name of the dim

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


class Export(Record, frozen=True, tag="export"):
    """One export from module to file."""

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
    verdict: Verdict | None  # of the exported graph against PyTorch; None: not asked for
    optimized: Run | None  # of the optimized file against the exported one
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()  # outermost modules whose weights no operation read on the example inputs
