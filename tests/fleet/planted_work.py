"""Pieces of work for tests, in a file that child processes and Dask workers can import."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sardonyx.errors import ModelError
from sardonyx.fleet.work import Answer, Needs, Task


class Planted(Task):
    """Does one thing, and appends a line to a log when it begins and when it ends."""

    def __init__(self, log: Path, index: int, does: str = "answer", seconds: float = 0.0, needs: Needs | None = None):
        self._log, self._index, self._does, self._seconds = log, index, does, seconds
        self._needs = needs or Needs()

    @property
    def name(self) -> str:
        return f"{self._does} {self._index}"

    @property
    def needs(self) -> Needs:
        return self._needs

    def compute(self, folder: Path) -> Answer:
        self._write("begins")
        time.sleep(self._seconds)
        getattr(self, f"_{self._does}")()
        (folder / "result").write_text(f"result {self._index}")
        self._write("ends")
        return {"index": self._index, "pid": os.getpid(), "parent": os.getppid()}

    def publish(self, folder: Path, answer: Answer) -> None:
        (folder / "result").replace(self._log.parent / f"result-{self._index}")

    def _write(self, what: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{self._index} {what} {time.time()} {os.getpid()}\n")

    def _answer(self) -> None:
        sys.stderr.write("this is printed\n")

    def _meet(self) -> None:
        """Wait until two works have met here; a work that runs alone never ends."""
        folder = self._log.parent / "met"
        folder.mkdir(exist_ok=True)
        (folder / str(self._index)).touch()
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)

    def _fail(self) -> None:
        raise ModelError("this model cannot be read")

    def _raise(self) -> None:
        raise KeyError("nothing")

    def _crash(self) -> None:
        sys.stderr.write("this is printed before the crash\n")
        ctypes.string_at(0)  # reads address 0: the process gets SIGSEGV

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self) -> None:
        sys.exit(3)

    def _interrupt(self) -> None:
        raise KeyboardInterrupt

    def _close_pipes(self) -> None:
        os.closerange(3, 100)
        time.sleep(600)  # it does not end by itself

    def _close_input(self) -> None:
        sys.stdin.close()
        subprocess.run(["cat"], check=True)  # its input is not that of this process

    def _leave(self) -> None:
        """Start processes that outlive this one: one of a program, and one that keeps all files open."""
        processes = [subprocess.Popen(["sleep", "600"]).pid, os.fork()]
        if not processes[1]:
            time.sleep(600)
        (self._log.parent / f"processes-{self._index}").write_text(" ".join(map(str, processes)))
        (Path(tempfile.mkdtemp()) / "file").touch()
        Path(tempfile.gettempdir(), "file").touch()

    def _leave_and_kill(self) -> None:
        self._leave()
        self._kill()

    def _leave_and_hang(self) -> None:
        self._leave()
        self._hang()

    def _hang(self) -> None:
        time.sleep(600)

    def _grow(self) -> None:
        held = [b"x" * 10_000_000 for _ in range(40)]
        time.sleep(20)
        del held

    def _crash_once(self) -> None:
        marker = self._log.parent / f"crashed-{self._index}"
        if not marker.exists():
            marker.touch()
            self._crash()
