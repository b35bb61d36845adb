"""A model that runs in a worker process.

Native code can abort, divide by zero or never end, on inputs as innocent as an empty batch. Then the worker goes, and
the caller gets a `RuntimeFailure` as for any other input that a model does not take. All models of a process share one
worker, which starts with the first of them and starts anew after it died; a model that was open in it opens itself
again with its next run.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime.engines import Runtime
from sardonyx.runtime.values import Feeds, Value
from sardonyx.runtime.worker_process import Died, Worker

_SERVER = "sardonyx.runtime.server"
_numbers = itertools.count()


class RuntimeCrash(RuntimeFailure):
    """The process that ran a model ended before it answered."""


class RuntimeTimeout(RuntimeFailure):
    """A run took longer than it was given."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run took."""

    seconds: float
    peak_bytes: int  # of the whole worker, its libraries and the model included


class _Shared:
    """The one worker of this process."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._process = 0
        self.lock = threading.RLock()
        self.dropped: list[int] = []  # models that nobody holds any more; told with the next request
        atexit.register(self.stop)

    def worker(self) -> Worker:
        """The worker, started if there is none; never that of a process this one was forked from."""
        if self._worker is None or self._process != os.getpid():
            self._worker, self._process = Worker(_SERVER), os.getpid()
        return self._worker

    def is_current(self, worker: Worker | None) -> bool:
        """Whether that is the worker that requests go to."""
        return worker is not None and worker is self._worker and self._process == os.getpid()

    def stop(self) -> None:
        """End the worker; the next request starts another."""
        if self._worker is not None and self._process == os.getpid():
            self._worker.close()
        self._worker = None

    def ask(self, request: tuple[Any, ...], seconds: float | None) -> Any:
        """One request and its reply, within so many seconds."""
        worker = self.worker()
        while self.dropped and request[0] != "close":
            self.ask(("close", self.dropped.pop()), None)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(seconds, give_up) if seconds is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            state, *reply = worker.ask(request)
        except Died as error:
            self.stop()
            if late.is_set():
                raise RuntimeTimeout(f"it did not finish in {seconds:.3g} s") from error
            raise RuntimeCrash(f"the process that runs it {error}") from error
        except BaseException:  # an interrupt leaves a reply in the pipe that nobody may take for the next one
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


class RemoteSession:
    """A model in a runtime of the worker process. Close it, or use it as a context.

    Args:
        source: the path of the model, or its bytes.
        runtime: what runs it.
        threads: threads of the runtime.
        seconds: how long one run may take; no limit where None.
        profile: keep track of the nodes that run, for `executed`.
        keep: lives as long as the session: the owner of the file, say.

    Raises:
        RuntimeFailure: the runtime does not take the model, or dies of it.
    """

    def __init__(
        self,
        source: Path | bytes,
        runtime: Runtime = Runtime.ORT,
        *,
        threads: int | None = None,
        seconds: float | None = None,
        profile: bool = False,
        keep: object = None,
    ) -> None:
        self._keep = keep
        self._request = (runtime, source, threads, profile)
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
        """All graph outputs in order.

        Raises:
            RuntimeFailure: the model rejects the feeds.
            RuntimeCrash: the runtime dies of them.
            RuntimeTimeout: the run does not end in time.
        """
        with _shared.lock:
            if not _shared.is_current(self._worker):
                self._open()
            outputs, seconds, peak = _shared.ask(("run", self._number, dict(feeds)), self.seconds)
        self.usage = Usage(seconds, peak)
        return outputs

    def run_each(self, many: Sequence[Feeds]) -> list[list[Value] | RuntimeFailure]:
        """The outputs for each of several feeds, or why there are none: small models take longer to ask than to run."""
        with _shared.lock:
            if not _shared.is_current(self._worker):
                self._open()
            try:
                return _shared.ask(("run_each", self._number, [dict(feeds) for feeds in many]), self.seconds)
            except (RuntimeCrash, RuntimeTimeout):  # of one of them
                return [self._outputs_or_failure(feeds) for feeds in many]

    def _outputs_or_failure(self, feeds: Feeds) -> list[Value] | RuntimeFailure:
        try:
            return self.run(feeds)
        except RuntimeFailure as failure:
            return failure

    def executed(self) -> frozenset[str] | None:
        """Names of the nodes that ran since the model was opened, the last time where it died meanwhile."""
        with _shared.lock:
            if not _shared.is_current(self._worker):
                return None
            return _shared.ask(("executed", self._number), None)

    def close(self) -> None:
        """Let go of the model."""
        with _shared.lock:
            if _shared.is_current(self._worker):
                _shared.ask(("close", self._number), None)
            self._worker = None

    def __del__(self) -> None:
        """Leave it to the next request to say so: a collector must not talk to the worker in the middle of another."""
        if getattr(self, "_worker", None) is not None:
            _shared.dropped.append(self._number)

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
