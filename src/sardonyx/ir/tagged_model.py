"""Models as verbs take and return them: read from any form with their origins attached, and as part of a result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.io import from_proto, load, to_proto
from sardonyx.ir.origins import attach
from sardonyx.provenance import Hierarchy
from sardonyx.records import gc_pause

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model


def is_program(source: object) -> bool:
    """Return whether a source is what torch's exporters return, without importing torch."""
    kind = type(source)
    return kind.__name__ in ("ExportedProgram", "ONNXProgram") and kind.__module__.startswith("torch.")


class Tagged(Struct, frozen=True):
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


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Return distinct names: file names, or full paths if these are not distinct, or numbered file names."""
    short = [os.path.basename(name) or name for name in names]
    for candidates in (short, list(names)):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [f"{name} ({index})" for index, name in enumerate(short, 1)]


class HasModel:
    """A result that holds the created model in `model`."""

    __slots__ = ()  # so that a record can inherit from it in addition to its own base

    model: ir.Model | None

    def to_proto(self) -> onnx.ModelProto:
        """Return the model as a ModelProto with all data inline, as in `sardonyx.optimize(proto).to_proto()`."""
        assert self.model is not None, "set by the verb that creates the result"
        return to_proto(self.model)
