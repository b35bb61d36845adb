"""A model to be compared: its graph, and a form that the runtime can load."""

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
from sardonyx.runtime import Source
from sardonyx.runtime.engines import Runtime
from sardonyx.runtime.remote import RemoteSession
from sardonyx.temporary import temporary_folder

Model: TypeAlias = str | Path | onnx.ModelProto | ir.Model | io.LoadedFile
_T = TypeVar("_T")
_MOST_PROTOBUF_BYTES = 1 << 30  # a protobuf message is limited to 2 GB
_SENT_BYTES = 1 << 23  # bytes of constants up to which a model is sent to the worker process without a file
_MAPPED_BYTES = 1 << 26  # bytes of constants above which they are written to a separate file, which the runtime maps


class Subject:
    """One side of a comparison. Weights stay on disk until the runtime reads them."""

    def __init__(self, source: Model) -> None:
        self._source = source.path if isinstance(source, io.LoadedFile) else source
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # deleted with this object
        if isinstance(source, io.LoadedFile):
            self.model = source.model
        elif isinstance(source, (str, Path)):
            self.model = io.load(Path(source))
        else:
            self.model = io.from_proto(source) if isinstance(source, onnx.ModelProto) else source

    def open(self, load: Callable[[Source], _T]) -> _T:
        """Pass the model to a loader; a model in memory goes through a file that is deleted after loading."""
        if isinstance(self._source, (str, Path)):
            return load(Path(self._source))
        if isinstance(self._source, onnx.ModelProto) and self._source.ByteSize() < _MOST_PROTOBUF_BYTES:
            return load(self._source)
        with temporary_folder() as folder:
            path = Path(folder) / "model.onnx"
            io.save(self.model, path, durable=False)
            return load(path)

    def session(
        self,
        runtime: Runtime = Runtime.ORT,
        *,
        threads: int | None = None,
        seconds: float | None = None,
        profile: bool = False,
        optimize: bool = False,
        outputs: int | None = None,
    ) -> RemoteSession:
        """Open the model in a worker process.

        Raises:
            RuntimeFailure: The runtime does not accept the model.
        """
        return RemoteSession(
            self._loadable,
            runtime,
            threads=threads,
            seconds=seconds,
            profile=profile,
            optimize=optimize,
            outputs=outputs,
            keep=self,
        )

    def any_session(self, *, threads: int | None = None) -> RemoteSession:
        """Open the model in ONNX Runtime, or in the reference evaluator if the runtime does not accept it.

        Raises:
            RuntimeFailure: Neither accepts the model.
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
        """The model as a path or bytes for the worker.

        A large model with its weights inside the file is written again with the weights in a separate file: parsing
        weights takes twice their size in memory, while the runtime maps a separate file.
        """
        size = self.constant_bytes
        if isinstance(self._source, (str, Path)):
            path = Path(self._source).absolute()
            fits = shutil.disk_usage(tempfile.gettempdir()).free > 2 * size
            if size < _MAPPED_BYTES or path.stat().st_size < size or not fits:
                return path
        elif size < _SENT_BYTES:
            proto = self._source if isinstance(self._source, onnx.ModelProto) else io.to_proto(self.model)
            return proto.SerializeToString()
        self._folder = temporary_folder()
        path = Path(self._folder.name) / "model.onnx"
        io.save(self.model, path, external=size >= _MAPPED_BYTES, durable=False)
        return path
