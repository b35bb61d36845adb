"""A model with its origins read, in whatever form a verb was handed it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.ir.io import from_proto, load
from sardonyx.ir.origins import attach
from sardonyx.provenance import Hierarchy
from sardonyx.records import gc_pause

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model


@dataclass(frozen=True, slots=True)
class Tagged:
    """A model whose nodes know their modules, and the file it came from if it came from one."""

    model: ir.Model
    hierarchy: Hierarchy
    path: Path | None

    @property
    def name(self) -> str:
        """How a person would call the model; a path with bytes that are no text loses those."""
        if self.path is not None:
            return os.fsencode(self.path).decode(errors="replace")
        return self.model.graph.name or "model in memory"


def tagged(source: Source) -> Tagged:
    """Read a model and where its nodes come from; what was handed in stays as it is."""
    path = None
    with gc_pause.paused():
        match source:
            case onnx.ModelProto():
                model = from_proto(source)
            case ir.Model():
                model = source.clone()  # tags are read into the nodes, and the caller's model is not ours
            case _:
                path = Path(source)
                model = load(path)
        return Tagged(model, attach(model), path)
