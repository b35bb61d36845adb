"""The runtimes that can run a model, by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import numpy as np

from sardonyx.errors import RuntimeFailure, UsageError, install_hint
from sardonyx.runtime import library
from sardonyx.runtime.sessions import ReferenceSession, Session
from sardonyx.runtime.values import Array, Engine, Feeds, Source, Value


class Runtime(StrEnum):
    """An independent implementation of the ONNX operators."""

    ORT = "ort"  # ONNX Runtime on the CPU, graph optimizations off
    REFERENCE = "reference"  # the reference evaluator of the onnx package: slow, but has every standard operator
    OPENVINO = "openvino"  # OpenVINO on the CPU, in the precision that the model declares


def parse_runtimes(names: Sequence[Runtime | str]) -> list[Runtime]:
    """Return the runtimes with these names, each once; ONNX Runtime if there are none.

    Raises:
        UsageError: There is no such runtime.
    """
    try:
        return [Runtime(name) for name in dict.fromkeys(names)] or [Runtime.ORT]
    except ValueError as error:
        known = ", ".join(runtime.value for runtime in Runtime)
        raise UsageError(f"there is no runtime {error.args[0].split(' is not')[0]}", hint=f"known: {known}") from error


def load(
    runtime: Runtime, source: Source, *, threads: int | None = None, profile: bool = False, optimize: bool = False
) -> Engine:
    """Load a model in one of the runtimes.

    Args:
        runtime: The runtime.
        source: The model.
        threads: Threads of the runtime; its own choice if None.
        profile: Record which nodes run, if the runtime can.
        optimize: Let ONNX Runtime optimize the graph.

    Raises:
        RuntimeFailure: if the runtime does not accept the model.
    """
    loaders: dict[Runtime, Callable[[], Engine]] = {
        Runtime.ORT: lambda: Session(source, optimize=optimize, threads=threads, profile=profile),
        Runtime.REFERENCE: lambda: ReferenceSession(source),
        Runtime.OPENVINO: lambda: OpenVinoSession(source, threads=threads),
    }
    return loaders[runtime]()


# A model in OpenVINO on the CPU, an implementation of the ONNX operators that shares no kernel with ONNX Runtime.

# Compute in single precision: by default the plugin may use bfloat16 if the machine supports it.
_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


class OpenVinoSession:
    """A model in OpenVINO, which computes in the types that the model declares.

    Raises:
        RuntimeFailure: if OpenVINO is not installed or does not accept the model.
    """

    def __init__(self, source: Source, *, threads: int | None = None) -> None:
        sys.modules.setdefault("openvino_telemetry", cast("Any", None))  # otherwise the import connects to a server
        try:
            package: Any = importlib.import_module("openvino")
        except ImportError as error:
            raise RuntimeFailure("OpenVINO is not installed", hint=install_hint("openvino")) from error
        self._failure: Any = (RuntimeError, ValueError, TypeError, NotImplementedError)
        settings = _SETTINGS | ({} if threads is None else {"INFERENCE_NUM_THREADS": threads})

        def compile_model() -> Any:
            core = package.Core()
            model = os.fspath(source) if isinstance(source, (str, Path)) else _as_bytes(source)
            return core.compile_model(core.read_model(model), "CPU", settings)

        self._model: Any = self._guarded(compile_model, "load")
        self._inputs = {name for port in self._model.inputs for name in port.get_names()}

    @property
    def name(self) -> str:
        """Return the runtime and its version."""
        from importlib.metadata import version  # slow to import

        return f"openvino {version('openvino')}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order. OpenVINO drops inputs that nothing reads."""
        inputs = {name: _dense(value, name) for name, value in feeds.items() if name in self._inputs}

        def infer() -> list[Value]:
            request = self._model.create_infer_request()
            request.infer(inputs)
            return [np.array(request.get_output_tensor(index).data) for index in range(len(self._model.outputs))]

        return self._guarded(infer, "run")

    def _guarded(self, action: Callable[[], Any], verb: str) -> Any:
        try:
            return action()
        except self._failure as error:
            raise RuntimeFailure(f"OpenVINO cannot {verb} the model: {library.one_line(error)}") from error


def _as_bytes(source: Any) -> bytes:
    return source if isinstance(source, bytes) else source.SerializeToString()


def _dense(value: Value, name: str) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        raise RuntimeFailure(f"OpenVINO cannot run the model: it does not support values like those of '{name}'")
    return np.ascontiguousarray(value)
