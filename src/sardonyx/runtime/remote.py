"""Run a model in a worker process.

Native code can abort, divide by zero or never end, even on inputs such as an empty batch. Then the worker process ends,
and the caller gets a `RuntimeFailure` as for any other input that a model does not accept. All models of a process
share one worker, which is started with the first model and restarted after it died. A model that was open in it is
opened again by its next run.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.io.decoder_folder import DecoderFolder
from sardonyx.records.run import LoadedDecoder
from sardonyx.runtime import generation, library, server
from sardonyx.runtime.generation import Generated
from sardonyx.runtime.library import Array, Feeds, Value
from sardonyx.runtime.sessions import Runtime, in_browser
from sardonyx.runtime.worker_process import Worker, WorkerDied

if TYPE_CHECKING:
    import onnx

_SERVER = "sardonyx.runtime.server"
_numbers = itertools.count()


class RuntimeCrash(RuntimeFailure):
    """The process that ran a model ended before it replied."""


class RuntimeTimeout(RuntimeFailure):
    """A run took longer than the limit."""


class Usage(Struct, frozen=True):
    """The time and memory of one run."""

    seconds: float
    peak_bytes: int  # of the whole worker, including its libraries and the model


class _Shared:
    """The one worker of this process."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._process = 0
        self._libraries: tuple[str, ...] = ()  # of custom operators that it loads
        self.lock = threading.RLock()
        self.dropped: list[int] = []  # deleted sessions, closed before the next request
        atexit.register(self.stop)

    def worker(self) -> Worker:
        """Return the worker, started if necessary; never that of the process this one was forked from.

        It is started again if other libraries of custom operators are to be loaded.
        """
        libraries = library.custom_op_libraries()
        if libraries != self._libraries:
            self.stop()
        if self._worker is None or self._process != os.getpid():
            self._worker, self._process, self._libraries = Worker(_SERVER), os.getpid(), libraries
        return self._worker

    def fork(self) -> None:
        """Start the worker as a fork of this process, if that is safe: no thread but this one can hold a lock.

        It is not safe after a library of custom operators was loaded, with the runtime, to find out whether it loads.
        """
        if self._worker is not None or library.custom_op_libraries():
            return
        if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:
            self._worker, self._process = Worker.fork(server.main), os.getpid()

    def is_current(self, worker: Worker | None) -> bool:
        """Return whether requests go to this worker."""
        is_same = self._process == os.getpid() and self._libraries == library.custom_op_libraries()
        return worker is not None and worker is self._worker and is_same

    def stop(self) -> None:
        """End the worker; the next request starts another one."""
        if self._worker is not None and self._process == os.getpid():
            self._worker.close()
        self._worker = None

    def free(self) -> None:
        """Ask the worker, if there is one of this process, to return memory to the system."""
        if self._worker is not None and self._process == os.getpid():
            self.ask(("free",), None)

    def ask(self, request: tuple[Any, ...], seconds: float | None) -> Any:
        """Send one request and return its reply, with a time limit."""
        worker = self.worker()
        while self.dropped and request[0] != "close":
            self.ask(("close", self.dropped.pop()), None)
        timed_out = threading.Event()

        def give_up() -> None:
            timed_out.set()
            worker.kill()

        timer = threading.Timer(seconds, give_up) if seconds is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            state, *reply = worker.ask(request)
        except WorkerDied as error:
            self.stop()
            if timed_out.is_set():
                raise RuntimeTimeout(f"it did not finish in {seconds:.3g} s") from error
            raise RuntimeCrash(f"the process that runs it {error}") from error
        except BaseException:  # after an interrupt, the pipe still holds the reply to this request
            self.stop()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if state == "failed":
            kind, message, hint = reply
            raise kind(message, hint=hint)
        return reply[0]


_shared = _Shared()


def start_early() -> None:
    """Start the worker before the first model, while this process does something else.

    Call it at the start of a process that will verify. It is then a fork, which need not import numpy again.
    """
    _shared.fork()


def free_memory() -> None:
    """Make the worker return the memory of closed models to the system.

    What it keeps would count as memory of the next model, and fewer trials of that one would fit.
    """
    with _shared.lock, contextlib.suppress(RuntimeFailure):
        _shared.free()


def evaluate(model: onnx.ModelProto) -> list[Array]:
    """Return all outputs of a model without inputs, computed once, for constant folding.

    Raises:
        RuntimeFailure: if no runtime computes them, or one crashes on them.
    """
    with _shared.lock:
        return _shared.ask(("evaluate", model.SerializeToString()), None)


def generate(folder: Path, prompt: Sequence[int], count: int, end: int, threads: int | None) -> Generated:
    """Load a decoder's folder as users do, in onnxruntime-genai if it is installed, and generate so many tokens.

    The token `end` ends and pads the text in place of the folder's own. Without the package the model is loaded in ONNX
    Runtime, and nothing is generated.

    Raises:
        RuntimeFailure: The runtime does not load the folder, fails on the tokens, or crashes.
    """
    if not generation.is_installed():
        with RemoteSession(DecoderFolder.require(folder).model, threads=threads, optimize=True) as session:
            return Generated(session.name)
    with _shared.lock:
        return _shared.ask(("generate", folder, list(prompt), count, end, threads), None)


def described(folder: DecoderFolder, loaded: Generated) -> LoadedDecoder:
    """Return a loaded folder for a record."""
    speed = (len(loaded.tokens) - 1) / loaded.seconds if loaded.seconds and len(loaded.tokens) > 1 else None
    return LoadedDecoder(loaded.runtime, speed, folder.cache_bytes(io.load(folder.model)))


class RemoteSession:
    """A model in a runtime of the worker process. Close it, or use it as a context manager.

    Args:
        source: The path of the model, or its bytes.
        runtime: The runtime.
        threads: Threads of the runtime.
        seconds: The time limit of one run; None for no limit.
        profile: Record which nodes run, for `executed`.
        optimize: Let ONNX Runtime optimize the graph, as it does by default.
        keeps_memory: Let ONNX Runtime keep the memory of a run for the next one, which then takes less time.
        outputs: How many outputs `run` returns, if not all; the others are collected in `further`.
        keep: An object to keep alive as long as the session, such as the owner of the file.

    Raises:
        RuntimeFailure: if the runtime does not accept the model or crashes on it.
    """

    def __init__(
        self,
        source: Path | bytes,
        runtime: Runtime = Runtime.ORT,
        *,
        threads: int | None = None,
        seconds: float | None = None,
        profile: bool = False,
        optimize: bool = False,
        keeps_memory: bool = False,
        outputs: int | None = None,
        keep: object = None,
    ) -> None:
        self._keep = keep
        self._outputs = outputs
        self.further: list[list[Value]] = []  # of every run
        settings: dict[str, Any] = {"threads": threads, "profile": profile, "optimize": optimize}
        settings |= {"keeps_memory": keeps_memory, "using": in_browser(runtime)}
        self._request = (runtime, source, settings)
        self.runtime = runtime
        self.seconds = seconds
        self._number = next(_numbers)
        self._worker: Worker | None = None
        self.usage = Usage(0.0, 0)  # of the last run
        with _shared.lock:
            self.name: str = self._open()

    def _open(self) -> str:
        name = _shared.ask(("open", self._number, *self._request), None)
        self._worker = _shared.worker()
        return name

    def run(self, feeds: Feeds) -> list[Value]:
        """Return the graph outputs in order.

        Raises:
            RuntimeFailure: if the model rejects the feeds.
            RuntimeCrash: if the runtime crashes on them.
            RuntimeTimeout: if the run does not end in time.
        """
        with _shared.lock:
            if not _shared.is_current(self._worker):
                self._open()
            outputs, seconds, peak = _shared.ask(("run", self._number, dict(feeds)), self.seconds)
        self.usage = Usage(seconds, peak)
        if self._outputs is not None and len(outputs) > self._outputs:
            self.further.append(outputs[self._outputs :])
        return outputs[: self._outputs]

    def run_each(self, many: Sequence[Feeds]) -> list[list[Value] | RuntimeFailure]:
        """Return the outputs for each of several feeds, or the failure.

        One request for all is faster: for small models, a request takes longer than a run.
        """
        with _shared.lock:
            if not _shared.is_current(self._worker):
                self._open()
            try:
                return _shared.ask(("run_each", self._number, [dict(feeds) for feeds in many]), self.seconds)
            except (RuntimeCrash, RuntimeTimeout):  # caused by one of them
                return server.outputs_or_failures(self.run, many)

    def executed(self) -> frozenset[str] | None:
        """Return the names of the nodes that ran since the model was last opened, or None if they are not known."""
        with _shared.lock:
            if not _shared.is_current(self._worker):
                return None
            return _shared.ask(("executed", self._number), None)

    def reopen(self, *, profile: bool) -> None:
        """Open the model again, and record which nodes run from now on, or no longer."""
        self.close()
        runtime, source, settings = self._request
        self._request = (runtime, source, settings | {"profile": profile})
        with _shared.lock:
            self._open()

    def close(self) -> None:
        """Close the model."""
        with _shared.lock:
            if _shared.is_current(self._worker):
                _shared.ask(("close", self._number), None)
            self._worker = None

    def __del__(self) -> None:
        """Leave closing to the next request: garbage collection may run in the middle of another request."""
        if getattr(self, "_worker", None) is not None:
            _shared.dropped.append(self._number)

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
