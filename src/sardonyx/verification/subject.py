"""A model to be compared, as it was handed in: its graph, and a form the runtime can load."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import onnx
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.scopes import is_constant
from sardonyx.runtime import Source as _Source
from sardonyx.runtime.engines import Runtime
from sardonyx.runtime.remote import RemoteSession

Model: TypeAlias = str | Path | onnx.ModelProto | ir.Model | io.LoadedFile
_T = TypeVar("_T")
_SAFE_IN_MEMORY = 1 << 30  # a protobuf message ends at 2 GB
_SENT = 1 << 23  # bytes of constants up to which a model goes to the worker process without a file
_MAPPED = 1 << 26  # bytes of constants from which on they go into a file of their own, which the runtime maps


class Subject:
    """One side of a comparison. Weights stay where they are until the runtime reads them."""

    Source: TypeAlias = _Source

    def __init__(self, given: Model) -> None:
        self._given = given.path if isinstance(given, io.LoadedFile) else given
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # lives as long as this object
        if isinstance(given, io.LoadedFile):
            self.model = given.model
        elif isinstance(given, (str, Path)):
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

    def session(
        self,
        runtime: Runtime = Runtime.ORT,
        *,
        threads: int | None = None,
        seconds: float | None = None,
        profile: bool = False,
    ) -> RemoteSession:
        """The model in a worker process.

        Raises:
            RuntimeFailure: The runtime does not take the model.
        """
        return RemoteSession(self._loadable, runtime, threads=threads, seconds=seconds, profile=profile, keep=self)

    def any_session(self, *, threads: int | None = None) -> RemoteSession:
        """The model in ONNX Runtime, or in the reference evaluator where the runtime does not take it.

        Raises:
            RuntimeFailure: Neither takes the model.
        """
        try:
            return self.session(Runtime.ORT, threads=threads)
        except RuntimeFailure as refusal:
            try:
                return self.session(Runtime.REFERENCE)
            except RuntimeFailure as second:
                raise RuntimeFailure(f"{refusal.message}; {second.message}", hint=refusal.hint) from second

    @functools.cached_property
    def constant_bytes(self) -> int:
        """Bytes of the initializers, and of the Constant nodes of the main graph."""
        stored = [value.const_value for value in self.model.graph.initializers.values()]
        stored += [constant_tensor(node) for node in self.model.graph if is_constant(node)]
        return sum(tensor.nbytes for tensor in stored if tensor is not None)

    @functools.cached_property
    def _loadable(self) -> Path | bytes:
        """The model as the worker reads it.

        A large model whose weights are inside its file is written with the weights beside it: the runtime parses the
        former, which takes twice their size in memory, and maps the latter.
        """
        size = self.constant_bytes
        if isinstance(self._given, (str, Path)):
            path = Path(self._given).absolute()
            room = shutil.disk_usage(tempfile.gettempdir()).free > 2 * size
            if size < _MAPPED or path.stat().st_size < size or not room:
                return path
        elif size < _SENT:
            whole = self._given if isinstance(self._given, onnx.ModelProto) else io.to_proto(self.model)
            return whole.SerializeToString()
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-")
        path = Path(self._folder.name) / "model.onnx"
        io.save(self.model, path, external=size >= _MAPPED)
        return path
