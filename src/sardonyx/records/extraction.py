"""One module that was cut out of a model, as plain frozen data: the answer of `extract`. Nothing here knows ONNX."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Artifact, Counts, Environment, Verdict


class BoundaryValue(msgspec.Struct, frozen=True):
    """A tensor that goes into or comes out of a module that was cut out of a model."""

    name: str  # in the file, before and after
    type: str
    shape: tuple[int | str | None, ...] | None
    module: str | None  # who makes it; None: an input of the whole model
    live: str | None = None  # what the live module calls it, where one was at hand


class Extraction(Record, frozen=True, tag="extraction"):
    """One module, cut out of a model as a model of its own."""

    title = "an extraction"
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
