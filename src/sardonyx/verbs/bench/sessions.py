"""Sessions that time a model: in this process, or in a worker process of its own.

A worker process shares no memory with other models. Load time, first run and peak memory are always measured in a fresh
one: in a process that has loaded a model before, the allocator makes each of them look better.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from sardonyx.errors import RuntimeFailure, SardonyxError, UsageError
from sardonyx.records.bench import Start
from sardonyx.runtime import Feeds, Value, library
from sardonyx.runtime.sessions import OpenVinoSession, Runtime, parse_runtimes
from sardonyx.runtime.timed import Level, Settings, TimedModel
from sardonyx.runtime.worker_process import Worker, WorkerDied, serve
from sardonyx.verbs.bench import machine
from sardonyx.verbs.bench.interleaving import SLOT_SECONDS, Run, slot


class TimingClock(StrEnum):
    """The time that counts."""

    WALL = "wall"  # elapsed time
    CPU = "cpu"  # CPU time of the thread that runs the model, without that of other processes


class SlotOptions(Struct, frozen=True):
    """The length of a slot and the clock it is timed by."""

    seconds: float = SLOT_SECONDS
    clock: TimingClock = TimingClock.WALL


class LocalSession:
    """A model in this process, in ONNX Runtime or OpenVINO."""

    def __init__(self, path: Path, settings: Settings) -> None:
        began = time.perf_counter()
        if settings.runtime is Runtime.OPENVINO:
            self._model = OpenVinoSession(path, threads=settings.threads)
            self.load_seconds = time.perf_counter() - began
        else:
            self._model = TimedModel(path, settings)
            self.load_seconds = self._model.load_seconds
        self.name = self._model.name
        self._outputs: list[Value] = []
        self._turn: Run | None = None

    def feed(self, feeds: Feeds, options: SlotOptions) -> float:
        """Set the feeds and options of the following slots; return the seconds of the first run."""
        if isinstance(self._model, TimedModel):
            _check_feeds(self._model.inputs, feeds)
        run = self._model.ready(feeds)
        began = time.perf_counter()
        self._outputs = run()
        seconds = time.perf_counter() - began
        now = time.thread_time if options.clock is TimingClock.CPU else time.perf_counter
        self._turn = slot(run, seconds=options.seconds, now=now)
        return seconds

    def turn(self) -> float:
        """Run one slot; return the seconds of one run."""
        assert self._turn is not None, "a session is fed before it is timed"
        return self._turn()

    def outputs(self) -> list[Value]:
        """Return the outputs of the first run on the feeds."""
        return self._outputs

    def close(self) -> None:
        """Drop the session."""
        self._turn = None
        self._outputs = []
        del self._model


class BrowserSession:
    """A model in a browser, timed by the page's clock. Only for a worker process, which ends the browser as well."""

    def __init__(self, path: Path, settings: Settings) -> None:
        from sardonyx.runtime.web import WebSession  # slow to import

        level = "disabled" if settings.level is Level.OFF else settings.level.value
        self._model = WebSession(path, "wasm", threads=settings.threads, level=level)
        self.load_seconds = self._model.load_seconds
        self.name = self._model.name
        self._outputs: list[Value] = []
        self._slot = SLOT_SECONDS

    def feed(self, feeds: Feeds, options: SlotOptions) -> float:
        """Set the feeds and options of the following slots; return the seconds of the first run."""
        _check_feeds(self._model.inputs, feeds)
        self._outputs, self._slot = self._model.run(feeds), options.seconds
        return self._model.seconds

    def turn(self) -> float:
        """Run one slot; return the seconds of one run."""
        return self._model.time(self._slot)

    def outputs(self) -> list[Value]:
        """Return the outputs of the first run on the feeds."""
        return self._outputs


def _check_feeds(inputs: Sequence[str], feeds: Feeds) -> None:
    missing = next((name for name in inputs if name not in feeds), None)
    if missing is not None:
        raise UsageError(
            f"there is no value for its input {missing!r}", hint="all files are run on the inputs of the first one"
        )


_WORKER = "sardonyx.verbs.bench.sessions"


class IsolatedSession:
    """A model in a worker process. Close it, or use it as a context manager."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._worker = Worker(_WORKER)
        try:
            self.load_seconds: float
            self.name: str
            self.load_seconds, self.name = self._ask("load", path, settings)
        except BaseException:
            self.close()
            raise
        self.peak_bytes: int | None = None  # up to the first run on the latest feeds; unknown for a browser

    @property
    def process(self) -> int:
        """The id of its process."""
        return self._worker.process

    def feed(self, feeds: Feeds, options: SlotOptions) -> float:
        """Set the feeds and options of the following slots; return the seconds of the first run."""
        seconds, self.peak_bytes = self._ask("feed", dict(feeds), options)
        return seconds

    def turn(self) -> float:
        """Run one slot, timed by the worker's clock; return the seconds of one run."""
        return self._ask("turn")

    def outputs(self) -> list[Value]:
        """Return the outputs for the feeds."""
        return self._ask("outputs")

    def close(self) -> None:
        """Stop the process."""
        self._worker.close()

    def __enter__(self) -> IsolatedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, *request: Any) -> Any:
        try:
            state, *reply = self._worker.ask(request)
        except WorkerDied as error:
            raise RuntimeFailure(f"the process that runs it {error}") from error
        if state == "failed":
            kind, message, hint = reply
            raise kind(message, hint=hint)
        return reply[0]


TimedSession = LocalSession | IsolatedSession
TIMED = (Runtime.ORT, Runtime.OPENVINO, Runtime.WEB_WASM)  # WebGPU in software has no times of a GPU


def timed_runtimes(names: Sequence[str], provider: str) -> list[Runtime]:
    """Return the runtimes with these names.

    Raises:
        UsageError: A runtime is unknown, is not one to time models in, or has no such provider.
        RuntimeFailure: One of them is not installed.
    """
    runtimes = parse_runtimes(names)
    for runtime in runtimes:
        if runtime not in TIMED:
            raise UsageError(f"models are not timed in {runtime}", hint=f"known: {', '.join(TIMED)}")
        if runtime is not Runtime.ORT and provider != "cpu":
            raise UsageError(f"{runtime} has no provider {provider!r}", hint="providers are those of the runtime ort")
    return runtimes


def settings_of(threads: int, provider: str, level: str) -> Settings:
    """Return the settings of a session.

    Raises:
        UsageError: The runtime has no such level.
    """
    try:
        return Settings(threads, provider, Level(level))
    except ValueError:
        raise UsageError(f"the runtime has no level {level!r}", hint=f"one of {', '.join(Level)}") from None


def start(path: Path, settings: Settings, feeds: Feeds) -> Start:
    """Load a model and run it once in a fresh process."""
    with IsolatedSession(path, settings) as session:
        first = session.feed(feeds, SlotOptions())
        return Start(session.load_seconds, first, session.peak_bytes)


def main() -> None:
    """Be the worker of an isolated session; errors of the library are sent back as replies."""
    session: LocalSession | BrowserSession | None = None
    before: int | None = None  # bytes resident before the model was loaded
    library.onnxruntime()  # imported now, so that neither its time nor its memory counts as the model's
    gc.disable()  # collecting garbage would disturb the timings

    def answer(request: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal session, before
        name, *arguments = request
        try:
            if name == "load":
                path, settings = arguments
                in_browser = settings.runtime is Runtime.WEB_WASM
                before = None if in_browser else machine.resident()
                session = (BrowserSession if in_browser else LocalSession)(path, settings)
                return "done", (session.load_seconds, session.name)
            result = getattr(session, name)(*arguments)
            return "done", (result, machine.grown_since(before)) if name == "feed" else result
        except SardonyxError as error:
            return "failed", type(error), error.message, error.hint

    serve(answer)


if __name__ == "__main__":
    from sardonyx.verbs.bench import sessions  # whose classes are those of the requests

    sessions.main()
