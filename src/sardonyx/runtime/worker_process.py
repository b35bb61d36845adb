"""A worker process that answers requests: a fresh interpreter with requests and replies over its standard streams.

It does not use `multiprocessing`: a calling script needs no `if __name__ == "__main__"`. Nor does it fork, so that the
worker inherits nothing that could influence a measurement; `fork` is an exception for the start of a command, where the
imports of the calling process are all that there is to inherit. Requests and replies are pickled. Output of native code
goes to standard error, so it cannot be mistaken for a reply. When the calling process ends for any reason, its worker
ends too.

A worker leads a process group with everything that it starts, its own workers included, so that one signal ends all of
it. Its TMPDIR is a folder that is deleted after it, whatever it left there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from sardonyx.common.temporary import temporary_folder

_EXIT_SECONDS = 5.0  # time for a process to end
_MAX_LINE = 300  # characters of the last line of its error output
_MAX_LOG = 100_000  # bytes that are returned at once of all that it printed
_POLL_SECONDS = 1.0  # seconds without a reply after which it is checked that the process has not ended
_IS_WORKER = "SARDONYX_WORKER"  # set in the environment of a worker


class WorkerDied(Exception):
    """A worker ended before it replied; the message says how, in one line."""


class Worker:
    """The calling side of a worker process. Close it when done.

    Args:
        module: The dotted name of the module that it runs, which calls `serve`.
        environment: Additional environment variables.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._prepare()
        own = {"PYTHONPATH": os.pathsep.join(_path()), **_environment(self._folder.name)}
        self._process: subprocess.Popen[bytes] | _Fork = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            env=os.environ | own | dict(environment or {}),
            start_new_session=self._leads_group,  # Ctrl-C reaches only this process, which then ends the worker
        )

    @classmethod
    def fork(cls, main: Callable[[], object]) -> Worker:
        """Return a worker that is a fork of this process and calls a function, which calls `serve`.

        It starts faster, because it does not import again what this process has imported. Call it only while this
        process has one thread: locks of other threads would stay locked in the fork.
        """
        worker = cls.__new__(cls)
        worker._prepare()
        worker._process = _Fork(
            main, worker._error_output.fileno(), worker._folder.name, leads_group=worker._leads_group
        )
        return worker

    def _prepare(self) -> None:
        self._error_output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._read = 0  # bytes of it that were returned
        self._folder = temporary_folder()
        self._leads_group = _IS_WORKER not in os.environ  # a worker's own workers stay in its group
        self._lock = threading.Lock()
        self._code: int | None = None  # once the process has ended

    @property
    def process(self) -> int:
        """Return the process ID."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._ended() is None

    def printed(self) -> str:
        """Return what the process has written to standard error since the last call."""
        size = os.fstat(self._error_output.fileno()).st_size
        data = os.pread(self._error_output.fileno(), min(size - self._read, _MAX_LOG), self._read)
        self._read = size
        return data.decode(errors="replace")

    def ask(self, request: Any) -> Any:
        """Send one request and wait for its reply.

        Raises:
            WorkerDied: The worker ended.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None, "it is a pipe"
        assert replies is not None, "so is this"
        try:
            _write(requests, request)
            self._wait_for_reply(replies)
            return pickle.load(replies)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied(self._how()) from error

    def _wait_for_reply(self, replies: IO[bytes]) -> None:
        """Wait until there is a reply to read.

        Raises:
            EOFError: The process has ended, although another one that it started keeps its pipe open.
        """
        waiting = select.poll()
        waiting.register(replies, select.POLLIN)
        while not waiting.poll(1000 * _POLL_SECONDS):
            if self._ended() is not None and not waiting.poll(0):
                raise EOFError

    def kill(self) -> None:
        """End the process and what it started, whatever they do; may be called from any thread during a request."""
        with self._lock:
            if self._code is None:  # otherwise its number may be that of another process
                self._process.kill()
                self._kill_group()

    def close(self) -> None:
        """End the process and what it started, wait for it, and delete its temporary files."""
        self.kill()
        self._wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unsent data has no reader any more
                    stream.close()
        self._error_output.close()
        self._folder.cleanup()

    def _kill_group(self) -> None:
        if self._leads_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _ended(self) -> int | None:
        """Return the exit code, negative for a signal, if the process has ended; what it started ends with it."""
        with self._lock:
            if self._code is None:
                self._code = self._process.poll()
                if self._code is not None:
                    self._kill_group()
            return self._code

    def _wait(self) -> int:
        """Return the exit code as soon as the process has ended.

        Raises:
            TimeoutError: It does not end.
        """
        limit = time.monotonic() + _EXIT_SECONDS
        while (code := self._ended()) is None:
            if time.monotonic() > limit:
                raise TimeoutError(f"process {self.process} does not end")
            time.sleep(0.001)
        return code

    def _how(self) -> str:
        try:
            code = self._wait()
        except TimeoutError:
            return "does not answer any more"
        self._error_output.seek(0)
        lines = [line for line in self._error_output.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        return how + (f": {lines[-1].strip()[:_MAX_LINE]}" if lines else "")


class _Fork:
    """A fork of this process, used like a `subprocess.Popen`."""

    def __init__(self, main: Callable[[], object], error_output: int, folder: str, *, leads_group: bool) -> None:
        requests, to_worker = os.pipe()
        from_worker, replies = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(main, (requests, replies, error_output), folder, leads_group=leads_group)
        os.close(requests)
        os.close(replies)
        self.stdin: IO[bytes] | None = os.fdopen(to_worker, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(from_worker, "rb")
        self._code: int | None = None

    def _run(
        self, main: Callable[[], object], streams: tuple[int, int, int], folder: str, *, leads_group: bool
    ) -> NoReturn:
        """Be the worker; no handler or buffer of the calling process runs at its end."""
        try:
            if leads_group:
                os.setsid()
            os.environ.update(_environment(folder))
            tempfile.tempdir = folder
            for target, descriptor in enumerate(streams):
                os.dup2(descriptor, target)
            os.closerange(3, 256)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (for its lifetime)
            main()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, if the process has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def serve(answer: Callable[[Any], Any]) -> None:
    """Reply to requests one after another, until the calling process ends."""
    received = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())  # processes that this one starts must not read its requests
    os.close(nothing)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(received, requests), daemon=True).start()
    while True:
        _write(replies, answer(requests.get()))


def _listen(received: IO[bytes], requests: queue.Queue[Any]) -> None:
    """Pass on requests; when the calling process has ended, end this one and what it started, whatever they do."""
    try:
        while True:
            requests.put(pickle.load(received))
    except (OSError, EOFError, pickle.UnpicklingError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    except BaseException:  # a request that cannot be read here would never be answered
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _write(stream: IO[bytes], message: Any) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _environment(folder: str) -> dict[str, str]:
    """Return the environment variables of every worker."""
    return {_IS_WORKER: "1", "TMPDIR": folder}


def _path() -> list[str]:
    """Return the module search path of this process, this package first.

    The worker can then unpickle the same objects as this process.
    """
    return [str(Path(__file__).parents[2]), *filter(None, sys.path)]
