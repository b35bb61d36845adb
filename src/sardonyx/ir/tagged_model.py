"""A model with its origins attached, read from any form in which a verb accepts a model."""

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
    """A model whose nodes have their modules attached, and the file it was read from, if any."""

    model: ir.Model
    hierarchy: Hierarchy
    path: Path | None

    @property
    def name(self) -> str:
        """Return the name to show; bytes of the path that are not valid text are replaced."""
        if self.path is not None:
            return os.fsencode(self.path).decode(errors="replace")
        return self.model.graph.name or "model in memory"


def tagged(source: Source) -> Tagged:
    """Read a model and the origins of its nodes. The given object is not changed."""
    path = None
    with gc_pause.paused():
        match source:
            case onnx.ModelProto():
                model = from_proto(source)
            case ir.Model():
                model = source.clone()  # because origins are attached to the nodes
            case _:
                path = Path(source)
                model = load(path)
        return Tagged(model, attach(model), path)
