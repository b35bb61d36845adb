"""A worker process that answers requests: a fresh interpreter with requests and replies over its standard streams.

It does not use `multiprocessing`: a calling script needs no `if __name__ == "__main__"`. Nor does it fork, so that the
worker inherits nothing that could influence a measurement; `fork` is an exception for the start of a command, where the
imports of the calling process are all that there is to inherit. Requests and replies are pickled. Output of native code
goes to standard error, so it cannot be mistaken for a reply. When the calling process ends for any reason, its worker
ends too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
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

_EXIT_SECONDS = 5.0  # time for a process to end
_MAX_LENGTH = 300  # characters of the last line of its error output
_MAX_LOG = 100_000  # bytes that are returned at once of all that it printed


class WorkerDied(Exception):
    """A worker ended before it replied; the message says how, in one line."""


class Worker:
    """The calling side of a worker process. Close it when done.

    Args:
        module: The dotted name of the module that it runs, which calls `serve`.
        environment: Additional environment variables.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._error_output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._read = 0  # bytes of it that were returned
        self._process: subprocess.Popen[bytes] | _Fork = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_path())} | dict(environment or {}),
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the worker
        )

    @classmethod
    def fork(cls, main: Callable[[], object]) -> Worker:
        """Return a worker that is a fork of this process and calls a function, which calls `serve`.

        It starts faster, because it does not import again what this process has imported. Call it only while this
        process has one thread: locks of other threads would stay locked in the fork.
        """
        worker = cls.__new__(cls)
        worker._error_output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        worker._read = 0
        worker._process = _Fork(main, worker._error_output.fileno())
        return worker

    @property
    def process(self) -> int:
        """Return the process ID."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

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
            return pickle.load(replies)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied(self._how()) from error

    def kill(self) -> None:
        """End the process, whatever it is doing; may be called from any thread during a request."""
        self._process.kill()

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait(_EXIT_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unsent data has no reader any more
                    stream.close()
        self._error_output.close()

    def _how(self) -> str:
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "does not answer any more"
        self._error_output.seek(0)
        lines = [line for line in self._error_output.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        return how + (f": {lines[-1].strip()[:_MAX_LENGTH]}" if lines else "")


class _Fork:
    """A fork of this process, used like a `subprocess.Popen`."""

    def __init__(self, main: Callable[[], object], error_output: int) -> None:
        requests, to_worker = os.pipe()
        from_worker, replies = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(main, (requests, replies, error_output))
        os.close(requests)
        os.close(replies)
        self.stdin: IO[bytes] | None = os.fdopen(to_worker, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(from_worker, "rb")
        self._code: int | None = None

    def _run(self, main: Callable[[], object], streams: tuple[int, int, int]) -> NoReturn:
        """Be the worker; no handler or buffer of the calling process runs at its end."""
        try:
            os.setsid()
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
        """Return the exit code if the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, seconds: float) -> int:
        """Return the exit code, negative for a signal, as soon as the process has ended."""
        limit = time.monotonic() + seconds
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > limit:
                raise subprocess.TimeoutExpired("worker", seconds)
            else:
                time.sleep(0.001)
        return self._code


def serve(answer: Callable[[Any], Any]) -> None:
    """Reply to requests one after another, until the calling process ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        _write(replies, answer(requests.get()))


def _listen(requests: queue.Queue[Any]) -> None:
    """Pass on requests; when the calling process has ended, end this one, whatever it is doing."""
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            requests.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _write(stream: IO[bytes], message: Any) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _path() -> list[str]:
    """Return the module search path of this process, this package first.

    The worker can then unpickle the same objects as this process.
    """
    return [str(Path(__file__).parents[2]), *filter(None, sys.path)]
