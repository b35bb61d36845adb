"""A worker process that answers requests: a fresh interpreter with requests and replies over its standard streams.

It uses neither fork nor `multiprocessing`: it inherits nothing that could influence a measurement, and a calling script
needs no `if __name__ == "__main__"`. Requests and replies are pickled. Output of native code goes to standard error, so
it cannot be mistaken for a reply. When the calling process ends for any reason, its worker ends too.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

_EXIT_SECONDS = 5.0  # time for a process to end
_MAX_LENGTH = 300  # characters of the last line of its error output


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
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_path())} | dict(environment or {}),
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the worker
        )

    @property
    def process(self) -> int:
        """Return the process ID."""
        return self._process.pid

    def ask(self, request: Any) -> Any:
        """Send one request and wait for its reply.

        Raises:
            Died: if the worker ended.
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
