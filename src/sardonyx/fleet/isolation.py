"""Run a piece of work in a child process, within limits of time and memory.

The same function runs in a thread of the command and in a thread of a Dask worker. A native library that crashes, a
run that does not end, and one that needs too much memory end the child alone, and the work fails with that reason.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.fleet.child import Reply, reason_of
from sardonyx.fleet.work import Answer, Outcome, Work
from sardonyx.runtime.worker_process import Worker, WorkerDied

_ONE_THREAD: Mapping[str, str] = {  # so that sums do not depend on the number of cores
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_SAMPLING = 0.1  # seconds between two looks at the memory of a child
_LARGE = 1 << 30  # bytes; a child that keeps more than this after its work is not used again
_RENDERING = ("cli", "reporting")  # packages that do not change answers


class Limits(Struct, frozen=True):
    """What one piece of work may use, and the code it must run."""

    seconds: float | None = None
    memory: int | None = None  # bytes, of the child and its own children
    code: str | None = None  # `code_hash` of the command; a worker with other code refuses


class Ended(Struct, frozen=True):
    """How a child ended its work."""

    reply: Reply
    died: bool  # by itself, not at a limit
    peak: int  # memory in bytes
    log: str  # what it printed


class ChildPool:
    """The child processes of this process: idle ones are used again, since starting one takes a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = False

    def run(self, work: Work, folder: Path, limits: Limits) -> Ended:
        """Compute work in a child, until it replies, dies, or is ended because of a limit."""
        child = self._take()
        watch = _Watch(child, limits)
        watch.start()
        answered = died = False
        try:
            reply = msgspec.json.decode(child.ask((work, folder)), type=Reply)
            answered = True
        except WorkerDied as error:
            died = watch.exceeded is None
            reply = Reply(None, watch.exceeded or f"its process {error}")
        finally:
            watch.stop()
            log = child.printed()
            usable = answered and watch.exceeded is None and child.is_running
            self._give_back(child, keep=usable and _memory(child.process) < _LARGE)
        return Ended(reply, died, watch.peak, log)

    def close(self) -> None:
        """End all children, whatever they are doing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.kill()
        for child in idle:
            child.close()

    def _take(self) -> Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("stopped")
            is_new = not self._idle
            child = Worker("sardonyx.fleet.child", _ONE_THREAD) if is_new else self._idle.pop()
            self._busy.add(child)
        if is_new:
            child.ask(None)  # waits until it has started, which is not part of the work
        return child

    def _give_back(self, child: Worker, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if keep and not self._closed:
                self._idle.append(child)
                return
        child.close()


class _Watch(threading.Thread):
    """Samples the memory of a child, and ends the child at a limit."""

    def __init__(self, child: Worker, limits: Limits) -> None:
        super().__init__(daemon=True)
        self._child, self._limits = child, limits
        self._ended = threading.Event()
        self.peak = 0
        self.exceeded: str | None = None

    def run(self) -> None:
        seconds, memory = self._limits.seconds, self._limits.memory
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            self.peak = max(self.peak, _memory(self._child.process))
            if memory is not None and self.peak > memory:
                self.exceeded = f"it needed more than the {memory / 1e9:.1f} GB that it may use"
            elif end is not None and time.monotonic() > end:
                self.exceeded = f"it did not end within {seconds:g} s"
            if self.exceeded is not None:
                self._child.kill()
            if self._ended.wait(_SAMPLING) or self.exceeded is not None:
                return

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()


_DESCRIBING = threading.Lock()
_CHILDREN = ChildPool()  # of a Dask worker, or of whatever else calls `isolated`


def isolated(work: Work, limits: Limits, children: ChildPool | None = None) -> Outcome:
    """Run a piece of work in a child process; every failure becomes the reason of the outcome."""
    start = time.perf_counter()
    answer: Answer | None = None
    ended: Ended | None = None
    try:
        if limits.code is not None and limits.code != code_hash():
            raise RuntimeFailure(f"the worker on {platform.node()} has another version of sardonyx")
        with work.scratch() as folder, _alone() if work.needs.timed else contextlib.nullcontext():
            work.fetch(folder)
            ended = (children or _CHILDREN).run(work, folder, limits)
            answer, reason = ended.reply.answer, ended.reply.reason
            if answer is not None:
                work.publish(folder, answer)
    except WorkerDied as error:  # before it was asked
        reason = str(error)
    except Exception as error:  # it ends nothing but this work
        answer, reason = None, reason_of(error)
    seconds = time.perf_counter() - start
    if ended is None:
        return Outcome(answer, reason, seconds, machine=machine())
    return Outcome(answer, reason, seconds, ended.peak, machine(), died=ended.died, log=ended.log)


@contextlib.contextmanager
def _alone() -> Generator[None]:
    """Wait until no other timed work runs on this machine, whichever command or worker it belongs to."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    path = Path(tempfile.gettempdir(), f"sardonyx-timing-{os.getuid()}.lock")
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def machine() -> str:
    """Return a description of this machine, equal for machines on which times can be compared."""
    with _DESCRIBING:  # threads that ask at once would each start the programs that `platform` starts
        return _machine()


@functools.cache
def _machine() -> str:
    return f"{platform.node()}, {_processor()}, {os.cpu_count()} cores, {platform.platform()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    named = fields.get("model name") or f"CPU part {fields.get('CPU part', 'unknown')}"
    return f"{platform.machine()} {named}"


@functools.cache
def code_hash() -> str:
    """Return a hash of the code that computes answers; the version alone does not change with every edit."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in _RENDERING:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _memory(process: int) -> int:
    """Return the bytes of memory of a process and its children that belong to no file; 0 where it is not known.

    Pages of mapped weight files are left out: the system takes them back when it needs memory.
    """
    total, waiting = 0, [process]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        try:
            status = (folder / "status").read_text(encoding="utf-8")
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="utf-8").split())
        except (OSError, ValueError):
            continue  # it has ended, or this is not Linux
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total
