"""A process of our own that answers requests: a fresh interpreter, asked over its standard streams.

Neither a fork nor `multiprocessing`: nothing is inherited that could flatter a measurement, and a script that calls us
needs no `if __name__ == "__main__"`. Requests and replies are pickled. What native code prints goes to standard error,
so that it cannot be taken for a reply. When the asking process ends, however it ends, its worker ends too.
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

_PATIENCE = 5.0  # seconds that a process gets to die
_LONGEST = 300  # characters of the last thing it said


class Died(Exception):
    """A worker ended before it answered; says how, in one line."""


class Worker:
    """The asking side of a process. Close it when done.

    Args:
        module: what it runs, by its dotted name; that calls `serve`.
        environment: variables to set for it, beside ours.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_path())} | dict(environment or {}),
            start_new_session=True,  # Ctrl-C is ours to hear; we end the worker
        )

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._process.pid

    def ask(self, request: Any) -> Any:
        """Send one request and wait for its reply.

        Raises:
            Died: where there will be none.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None, "it is a pipe"
        assert replies is not None, "so is this"
        try:
            _write(requests, request)
            return pickle.load(replies)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise Died(self._how()) from error

    def kill(self) -> None:
        """End the process, whatever it is doing; from any thread, while another one may be asking."""
        self._process.kill()

    def close(self) -> None:
        """End the process and see it off."""
        self._process.kill()
        self._process.wait(_PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
                    stream.close()
        self._said.close()

    def _how(self) -> str:
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "does not answer any more"
        self._said.seek(0)
        said = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        return how + (f": {said[-1].strip()[:_LONGEST]}" if said else "")


def serve(answer: Callable[[Any], Any]) -> None:
    """The answering side: reply to requests, one after another, until nobody asks any more."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        _write(replies, answer(requests.get()))


def _listen(requests: queue.Queue[Any]) -> None:
    """Pass requests on; when the asking process is gone, go too, whatever is under way."""
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            requests.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _write(stream: IO[bytes], message: Any) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _path() -> list[str]:
    """Where this process finds its modules, this very package first: what it can unpickle, the worker can too."""
    return [str(Path(__file__).parents[2]), *filter(None, sys.path)]
