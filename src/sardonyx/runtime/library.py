"""ONNX Runtime itself: the one place that imports it, with its first model, and what it raises."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime.values import Source

_LARGEST_PROTOBUF = 2**31 - 1
_QUIET = 4  # the runtime's log severity "fatal": errors reach us as exceptions


class NoKernel(RuntimeFailure):
    """The model is valid, and the runtime has no kernel for an operator of it in the type that the model says."""

    @property
    def operator(self) -> str:
        """Which operator it is."""
        found = re.search(r"implementation for (\w+)", self.message)
        return found[1] if found else "an operator"


def onnxruntime() -> Any:
    """The package, told to be quiet."""
    ort: Any = importlib.import_module("onnxruntime")
    ort.set_default_logger_severity(_QUIET)
    return ort


def session_options() -> Any:
    """Options of a session that says nothing."""
    options = onnxruntime().SessionOptions()
    options.log_severity_level = _QUIET
    return options


def run_options() -> Any:
    """Options of one run that says nothing."""
    options = onnxruntime().RunOptions()
    options.log_severity_level = _QUIET
    return options


def errors() -> tuple[type[Exception], ...]:
    """The runtime's own exceptions, and those its Python layer raises for feeds it cannot use."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    names = ("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf")
    more = ("ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail")
    own: list[type[Exception]] = [getattr(state, name) for name in (*names, *more)]
    return (*own, RuntimeError, ValueError, TypeError)


def opened(source: Source, options: Any, providers: list[str]) -> Any:
    """A session of the runtime with the model in it.

    Raises:
        NoKernel: where the runtime has no kernel for one of its operators.
        RuntimeFailure: where the runtime does not take the model.
    """
    try:
        return onnxruntime().InferenceSession(_loadable(source), options, providers=providers)
    except errors() as error:
        kind = NoKernel if type(error).__name__ == "NotImplemented" else RuntimeFailure
        raise kind(
            f"ONNX Runtime cannot load the model: {one_line(error)}",
            hint="ONNX Runtime 1.31 takes IR versions up to 13 and opsets up to 26",
        ) from error


def one_line(error: BaseException) -> str:
    """What an exception says, without the runtime's own frame around it."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.partition("[ONNXRuntimeError] : ")
    text = reason or text
    return text if len(text) <= 300 else text[:297] + "..."


def _loadable(source: Source) -> str | bytes:
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return source
    if source.ByteSize() > _LARGEST_PROTOBUF:
        raise RuntimeFailure("a model over 2 GB cannot be run from memory", hint="save it and pass its path")
    return source.SerializeToString()
