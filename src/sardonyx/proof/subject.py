"""A model to be judged, as it was handed in: its graph, and a form the runtime can load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import onnx
import onnx_ir as ir

from sardonyx.graph import io
from sardonyx.runtime import Source as _Source

Model: TypeAlias = str | Path | onnx.ModelProto | ir.Model
_T = TypeVar("_T")
_SAFE_IN_MEMORY = 1 << 30  # a protobuf message ends at 2 GB


class Subject:
    """One side of a comparison. Weights stay where they are until the runtime reads them."""

    Source: TypeAlias = _Source

    def __init__(self, given: Model) -> None:
        self._given = given
        if isinstance(given, (str, Path)):
            self.model = io.load(Path(given))
        else:
            self.model = io.from_proto(given) if isinstance(given, onnx.ModelProto) else given

    def open(self, load: Callable[[_Source], _T]) -> _T:
        """Hand the model to a loader, through a file that lives only as long as loading takes if there is none."""
        if isinstance(self._given, (str, Path)):
            return load(Path(self._given))
        if isinstance(self._given, onnx.ModelProto) and self._given.ByteSize() < _SAFE_IN_MEMORY:
            return load(self._given)
        with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
            path = Path(folder) / "model.onnx"
            io.save(self.model, path)
            return load(path)
