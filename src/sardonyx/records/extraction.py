"""One module that was cut out of a model, as plain frozen data: the answer of `extract`. Nothing here knows ONNX."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import msgspec

from sardonyx.records.run import Artifact, Counts, Environment, Verdict

EXTRACTION_VERSION = 1


@dataclass(frozen=True, slots=True)
class BoundaryValue:
    """A tensor that goes into or comes out of a module that was cut out of a model."""

    name: str  # in the file, before and after
    type: str
    shape: tuple[int | str | None, ...] | None
    module: str | None  # who makes it; None: an input of the whole model
    live: str | None = None  # what the live module calls it, where one was at hand


@dataclass(frozen=True)
class Extraction:
    """One module, cut out of a model as a model of its own."""

    status: str  # "done"
    environment: Environment
    source: Artifact
    result: Artifact
    asked: str  # instance path of the module that was asked for
    path: str  # of the one that was cut out; another where fused nodes made it wider
    tag: str
    call: int  # which of its calls
    calls: int
    counts: Counts
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    straddling: tuple[str, ...]  # nodes that made the cut wider
    dropped: tuple[str, ...]  # what the live module returns and the graph does not compute
    verdict: Verdict | None  # against the whole model; None: verification was switched off
    live: Verdict | None  # against the live module; None: there was none
    seconds: dict[str, float]  # by phase
    notes: tuple[str, ...] = ()
    schema_version: int = EXTRACTION_VERSION

    def to_json(self) -> bytes:
        """The record as JSON, whatever a subclass carries beside it."""
        return msgspec.json.encode({f.name: getattr(self, f.name) for f in fields(Extraction)})

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """A record read back."""
        return msgspec.json.decode(data, type=cls)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of an Extraction."""
    return msgspec.json.schema(Extraction)
