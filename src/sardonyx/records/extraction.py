"""The record of `extract`: one module of a model as a separate model."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Artifact, Counts, Environment, Verdict


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
