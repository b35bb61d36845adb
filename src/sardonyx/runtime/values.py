"""What goes into a model and comes out of it, and the forms a model is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Map: TypeAlias = "dict[int | str, float | int | str]"  # ai.onnx.ml's ZipMap and the like
Value: TypeAlias = "Array | list[Value] | Map | None"
Feeds: TypeAlias = Mapping[str, Value]
Source: TypeAlias = "str | Path | bytes | onnx.ModelProto"


class Choice(NamedTuple):
    """What an operator such as TopK or ArgMax chose."""

    scores: Array
    axis: int  # along which it chose
    indices: Array  # of the same rank as the scores


class Engine(Protocol):
    """A loaded model that can be run."""

    @property
    def name(self) -> str:
        """Which program runs the model, and how."""
        ...

    def run(self, feeds: Feeds) -> list[Value]:
        """All graph outputs in order; raises RuntimeFailure where the model rejects the feeds."""
        ...
