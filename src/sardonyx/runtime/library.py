"""Access to ONNX Runtime: the only import of it, which happens with the first model, its extensions and exceptions.

Also the types of values that go into and come out of a model, and the forms that a model is loaded from.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from sardonyx.errors import RuntimeFailure, UsageError

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
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


_MAX_PROTOBUF_BYTES = 2**31 - 1
_CUSTOM_OPS = "SARDONYX_CUSTOM_OPS"  # paths of operator libraries; worker processes inherit the variable
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"  # read while the library is loaded; afterwards it has no effect
_FATAL_ONLY = 4  # the log severity "fatal"; errors are raised as exceptions anyway


class NoKernel(RuntimeFailure):
    """The model is valid, but the runtime has no kernel for one of its operators in the declared type."""

    @property
    def operator(self) -> str:
        """Return the name of the operator."""
        match = re.search(r"implementation for (\w+)", self.message)
        return match[1] if match else "an operator"


def onnxruntime() -> Any:
    """Return the package, without telemetry, and with logging reduced to fatal errors.

    With telemetry the Linux builds since 1.31 look up a host once a session exists, and leave a file in TMPDIR.
    """
    os.environ[_NO_TELEMETRY] = "1"
    ort: Any = importlib.import_module("onnxruntime")
    ort.set_default_logger_severity(_FATAL_ONLY)
    return ort


def session_options() -> Any:
    """Return session options with logging reduced to fatal errors."""
    options = onnxruntime().SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    for path in custom_op_libraries():
        _register(options, path)
    return options


@contextlib.contextmanager
def custom_ops(*libraries: str | os.PathLike[str]) -> Generator[None]:
    """Load operator libraries into every session that is opened in this block, also by worker processes.

    Args:
        libraries: Shared libraries with custom operators of ONNX Runtime, which export `RegisterCustomOps`.

    Raises:
        UsageError: There is no such file.
        RuntimeFailure: The runtime cannot load one of them.
    """
    paths = [str(Path(path).resolve()) for path in libraries]
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(
                f"there is no operator library {path}", hint="name a shared library: FILE.so, .dylib, .dll"
            )
        _register(onnxruntime().SessionOptions(), path)
    before = os.environ.get(_CUSTOM_OPS)
    os.environ[_CUSTOM_OPS] = os.pathsep.join([*custom_op_libraries(), *paths])
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CUSTOM_OPS]
        else:
            os.environ[_CUSTOM_OPS] = before


def custom_op_libraries() -> tuple[str, ...]:
    """Return the paths of the operator libraries that sessions load."""
    return tuple(filter(None, os.environ.get(_CUSTOM_OPS, "").split(os.pathsep)))


def _register(options: Any, path: str) -> None:
    try:
        options.register_custom_ops_library(path)
    except errors() as error:
        reason = one_line(error).rpartition("with error: ")[2].removeprefix(f"{path}: ")
        raise RuntimeFailure(
            f"the operator library {path} cannot be loaded: {reason}",
            hint="it must be built for this machine, and export RegisterCustomOps",
        ) from error


def run_options(*, frees_memory: bool = False) -> Any:
    """Return run options with logging reduced to fatal errors.

    Args:
        frees_memory: return the memory of intermediate results to the system after the run. The next run takes a little
            longer; without an arena at all, half of the time of large results goes into fresh pages.
    """
    options = onnxruntime().RunOptions()
    options.log_severity_level = _FATAL_ONLY
    if frees_memory:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the runtime, and those that its Python layer raises for feeds it cannot use."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    names = ("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf")
    more = ("ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail")
    own: list[type[Exception]] = [getattr(state, name) for name in (*names, *more)]
    return (*own, RuntimeError, ValueError, TypeError)


def open_session(source: Source, options: Any, providers: list[str]) -> Any:
    """Return a session of the runtime with the model loaded.

    Raises:
        NoKernel: if the runtime has no kernel for one of its operators.
        RuntimeFailure: if the runtime does not accept the model.
    """
    try:
        return onnxruntime().InferenceSession(loadable(source), options, providers=providers)
    except errors() as error:
        from sardonyx.ir.support import MAX_IR_VERSION, MAX_OPSET  # loads onnx

        kind = NoKernel if type(error).__name__ == "NotImplemented" else RuntimeFailure
        raise kind(
            f"ONNX Runtime cannot load the model: {one_line(error)}",
            hint=f"ONNX Runtime 1.31 accepts IR versions up to {MAX_IR_VERSION} and opsets up to {MAX_OPSET}",
        ) from error


def one_line(error: BaseException) -> str:
    """Return the text of an exception in one line, without the prefix of the runtime."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.partition("[ONNXRuntimeError] : ")
    text = reason or text
    return text if len(text) <= 300 else text[:297] + "..."


def loadable(source: Source) -> str | bytes:
    """Return the path of a model, or its bytes."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return source
    if source.ByteSize() > _MAX_PROTOBUF_BYTES:
        raise RuntimeFailure("a model over 2 GB cannot be run from memory", hint="save it and pass its path")
    return source.SerializeToString()
