"""The types of values that go into and come out of a model, and the forms that a model is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from sardonyx.ir.storage import Array as Array

if TYPE_CHECKING:
    import onnx

Map: TypeAlias = "dict[int | str, float | int | str]"  # the result of ai.onnx.ml's ZipMap, for example
Value: TypeAlias = "Array | list[Value] | Map | None"
Feeds: TypeAlias = Mapping[str, Value]
Source: TypeAlias = "str | Path | bytes | onnx.ModelProto"


class Choice(NamedTuple):
    """The selection of an operator such as TopK or ArgMax."""

    scores: Array
    axis: int  # along which it selected
    indices: Array  # of the same rank as the scores


class Engine(Protocol):
    """A loaded model that can be run."""

    @property
    def name(self) -> str:
        """Return the name of the runtime, and its settings."""
        ...

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order; raise RuntimeFailure if the model rejects the feeds."""
        ...
