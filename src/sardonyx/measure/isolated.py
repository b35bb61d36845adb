"""A model in a process of its own: for turns that share no memory with other models, and for honest first times.

Load time, first run and peak memory are those of a fresh process in either mode of `bench`: in a process that has
loaded a model before, the allocator and the file cache of the system make each of them look better.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import sardonyx
from sardonyx.bench_record import Start
from sardonyx.errors import RuntimeFailure
from sardonyx.measure.lanes import Pace
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.timed import Settings

_WORKER = "sardonyx.measure.worker"
_PATIENCE = 5.0  # seconds that a process gets to die


class Isolated:
    """A model in a worker process. Close it, or use it as a context."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is ours to hear; we end the worker
        )
        try:
            self.load_seconds: float = self._ask("load", str(path), settings)
        except BaseException:
            self.close()
            raise
        self.peak_bytes: int | None = None  # until the first run after the latest feeding

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._process.pid

    def feed(self, feeds: Feeds, pace: Pace) -> float:
        """Run on these from now on, at this pace; the seconds that the first of those runs took."""
        seconds, self.peak_bytes = self._ask("feed", dict(feeds), pace)
        return seconds

    def turn(self) -> float:
        """One short slot of runs, by the worker's own clock."""
        return self._ask("turn")

    def answers(self) -> list[Value]:
        """What the model says to its feeds."""
        return self._ask("answers")

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait(_PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
                    stream.close()
        self._said.close()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, *request: Any) -> Any:
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None, "it is a pipe"
        assert replies is not None, "so is this"
        try:
            pickle.dump(request, requests, protocol=pickle.HIGHEST_PROTOCOL)
            requests.flush()
            state, *reply = pickle.load(replies)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RuntimeFailure(self._how_it_died()) from error
        if state == "failed":
            kind, message, hint = reply
            raise kind(message, hint=hint)
        return reply[0]

    def _how_it_died(self) -> str:
        """In one line, with the last thing it said."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "the process that runs it does not answer any more"
        self._said.seek(0)
        said = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
        return f"the process that runs it {how}" + (f": {said[-1].strip()[:300]}" if said else "")


def start(path: Path, settings: Settings, feeds: Feeds) -> Start:
    """Load a model and run it once, in a process that does nothing else."""
    with Isolated(path, settings) as fresh:
        first = fresh.feed(feeds, Pace())
        return Start(fresh.load_seconds, first, fresh.peak_bytes)


def _environment() -> dict[str, str]:
    """Ours, and this very package for the worker to find."""
    here = str(Path(sardonyx.__file__).parent.parent)
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
