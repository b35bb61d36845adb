"""A model under verification: how it is run, and the interface of its graph, which no rewrite may change."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import onnx
import onnx_ir as ir

from sardonyx.common.temporary import TemporaryFolder, temporary_folder
from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.ops import RANDOM
from sardonyx.ir.scopes import bodies, called_first, declared_shape, is_constant, values_read
from sardonyx.runtime import Source
from sardonyx.runtime.remote import RemoteSession
from sardonyx.runtime.sessions import Runtime

Model: TypeAlias = str | Path | onnx.ModelProto | ir.Model | io.LoadedFile
_T = TypeVar("_T")
_MOST_PROTOBUF_BYTES = 1 << 30  # a protobuf message is limited to 2 GB
_SENT_BYTES = 1 << 23  # bytes of constants up to which a model is sent to the worker process without a file
_MAPPED_BYTES = 1 << 26  # bytes of constants above which they are written to a separate file, which the runtime maps


class Subject:
    """One side of a comparison. Weights stay on disk until the runtime reads them."""

    def __init__(self, source: Model) -> None:
        self._source = source.path if isinstance(source, io.LoadedFile) else source
        self._folder: TemporaryFolder | None = None  # deleted with this object
        self.copies: io.Copies | None = None  # of its tensors, if they were written to that folder
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
        keeps_memory: bool = False,
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
            keeps_memory=keeps_memory,
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
        self.copies = io.save(self.model, path, external=size >= _MAPPED_BYTES, durable=False).copies
        return path


def interface_changes(a: ir.Model, b: ir.Model) -> list[str]:
    """Return one line for every difference between the inputs and outputs of `a` and those of `b`."""
    changes = _value_changes("input", a.graph.inputs, b.graph.inputs)
    return changes + _value_changes("output", a.graph.outputs, b.graph.outputs)


def _value_changes(kind: str, before: Sequence[ir.Value], after: Sequence[ir.Value]) -> list[str]:
    names, new_names = [v.name for v in before], [v.name for v in after]
    if names != new_names:
        return [f"{kind}s were {_listed(names)} and are {_listed(new_names)}"]
    changes: list[str] = []
    for old, new in zip(before, after, strict=True):
        if old.type != new.type:
            changes.append(f"{kind} '{old.name}' was {old.type} and is {new.type}")
        elif declared_shape(old) != declared_shape(new):
            changes.append(f"{kind} '{old.name}' was of shape {_shape_text(old)} and is of shape {_shape_text(new)}")
    return changes


def _shape_text(value: ir.Value) -> str:
    shape = declared_shape(value)
    return "unknown" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def _listed(names: Sequence[str | None]) -> str:
    return "(" + ", ".join(str(n) for n in names[:8]) + (", …)" if len(names) > 8 else ")")


def random_outputs(model: ir.Model) -> frozenset[str]:
    """Return the names of the graph outputs that depend on a random operator: two correct runs may differ there."""
    random_functions: set[ir.OperatorIdentifier] = set()
    for function in called_first(model):
        if any(_is_random(node, random_functions) for node in function):
            random_functions.add(function.identifier())
    if not random_functions and not any(_is_random(node, set()) for node in model.graph.all_nodes()):
        return frozenset()
    dependent: set[ir.Value] = set()
    grew = True
    while grew:
        size = len(dependent)
        for node in model.graph:
            if _is_random(node, random_functions) or any(v in dependent for v in values_read(node)):
                dependent.update(node.outputs)
        grew = len(dependent) > size
    return frozenset(v.name for v in model.graph.outputs if v in dependent and v.name is not None)


def _is_random(node: ir.Node, random_functions: set[ir.OperatorIdentifier]) -> bool:
    if node.op_identifier() in random_functions or (not node.domain and node.op_type in RANDOM):
        return True
    if node.op_type == "Dropout" and _may_train(node):
        return True
    return any(_is_random(inner, random_functions) for _, body in bodies(node) for inner in body)


def _may_train(node: ir.Node) -> bool:
    """Return whether the training_mode input of a Dropout, without which it is deterministic, may be true."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    mode = ir.convenience.get_const_tensor(node.inputs[2])
    return mode is None or bool(mode.numpy().any())
