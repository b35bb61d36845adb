"""The runtimes that can run a model, by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from sardonyx.runtime.openvino import OpenVinoSession
from sardonyx.runtime.sessions import ReferenceSession, Session
from sardonyx.runtime.values import Engine, Source


class Runtime(StrEnum):
    """An independent implementation of the ONNX operators."""

    ORT = "ort"  # ONNX Runtime on the CPU, graph optimizations off
    REFERENCE = "reference"  # the reference evaluator of the onnx package: slow, but has every standard operator
    OPENVINO = "openvino"  # OpenVINO on the CPU, in the precision that the model declares


def load(runtime: Runtime, source: Source, *, threads: int | None = None, profile: bool = False) -> Engine:
    """Load a model in one of the runtimes.

    Args:
        runtime: The runtime.
        source: The model.
        threads: Threads of the runtime; its own choice if None.
        profile: Record which nodes run, if the runtime can.

    Raises:
        RuntimeFailure: if the runtime does not accept the model.
    """
    loaders: dict[Runtime, Callable[[], Engine]] = {
        Runtime.ORT: lambda: Session(source, threads=threads, profile=profile),
        Runtime.REFERENCE: lambda: ReferenceSession(source),
        Runtime.OPENVINO: lambda: OpenVinoSession(source, threads=threads),
    }
    return loaders[runtime]()
