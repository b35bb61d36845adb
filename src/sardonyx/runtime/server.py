"""The worker process of `remote`: holds the models that another process has opened, and runs them on request."""

from __future__ import annotations

import contextlib
import ctypes
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sardonyx.errors import RuntimeFailure, SardonyxError
from sardonyx.runtime import library
from sardonyx.runtime.generation import generate
from sardonyx.runtime.library import Engine, Feeds, Source, Value
from sardonyx.runtime.sessions import Runtime, Session, evaluate, load
from sardonyx.runtime.worker_process import serve


class _Server:
    """The requests that the worker answers, by name."""

    def __init__(self) -> None:
        self._engines: dict[int, Engine] = {}

    def open(self, number: int, runtime: Runtime, source: Source, settings: dict[str, Any]) -> str:
        self._engines[number] = load(runtime, source, **settings)
        return self._engines[number].name

    def run(self, number: int, feeds: Any) -> tuple[list[Any], float, int]:
        """Return the outputs, the time in seconds, and the peak memory of this process during the run."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        start = time.perf_counter()
        outputs = self._engines[number].run(feeds)
        return outputs, time.perf_counter() - start, _peak_bytes()

    def run_each(self, number: int, many: list[Any]) -> list[Any]:
        return outputs_or_failures(self._engines[number].run, many)

    evaluate = staticmethod(evaluate)
    generate = staticmethod(generate)

    def executed(self, number: int) -> frozenset[str] | None:
        """Return the names of the nodes that ran since the model was opened, or None if they are not recorded."""
        engine = self._engines[number]
        return engine.executed() if isinstance(engine, Session) else None

    def close(self, number: int) -> None:
        self._engines.pop(number, None)

    def free(self) -> None:
        """Return memory that closed models have used to the system, if its C library can."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def outputs_or_failures(
    run: Callable[[Feeds], list[Value]], many: Sequence[Feeds]
) -> list[list[Value] | RuntimeFailure]:
    """Return the outputs for each of the feeds, or the failure."""
    results: list[list[Value] | RuntimeFailure] = []
    for feeds in many:
        try:
            results.append(run(feeds))
        except RuntimeFailure as failure:
            results.append(failure)
    return results


def _peak_bytes() -> int:
    """Return the peak resident memory since the last reset, or 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Answer requests; a failure is a reply as well."""
    warnings.simplefilter("ignore")
    library.onnxruntime()  # loaded while the calling process prepares its first request
    server = _Server()

    def answer(request: tuple[Any, ...]) -> tuple[Any, ...]:
        name, *arguments = request
        try:
            return "done", getattr(server, name)(*arguments)
        except SardonyxError as error:
            return "failed", type(error), error.message, error.hint
        except MemoryError:
            return "failed", SardonyxError, "there is not enough memory", None

    serve(answer)


if __name__ == "__main__":
    main()
