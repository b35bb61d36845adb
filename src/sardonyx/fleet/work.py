"""Work on one model: what it needs, what it computes, and the child process that runs it within limits.

Work is independent of other work and gets nothing but its own fields, so that it can run in any process on any
machine. `fetch` and `publish` run in the process that was given the work, in a thread of the command or of a Dask
worker; `compute` in a child of it. A native library that crashes, a run that does not end, and one that needs too
much memory end the child alone: the work fails with that reason, and nothing is published.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import platform
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure, SardonyxError
from sardonyx.runtime.remote import free_memory
from sardonyx.runtime.worker_process import Worker, WorkerDied, serve

Answer = dict[str, Any]  # as JSON: tuples become lists, and numbers that are not finite become None


class Needs(Struct, frozen=True):
    """What a piece of work needs of the machine that runs it."""

    memory: int = 0  # estimated peak in bytes; 0: unknown
    timed: bool = False  # must run alone on the machine


def estimated_memory(model: Path) -> int:
    """Return an estimate of the peak memory of optimizing and verifying a model, from the bytes of its files.

    Two sessions of the runtime each hold the weights and their activations; the libraries need the rest.
    """
    files = (model, *model.parent.glob(f"{glob.escape(model.name)}*data"))
    return 400_000_000 + 4 * sum(file.stat().st_size for file in files if file.is_file())


class Outcome(Struct, frozen=True):
    """How a piece of work ended: its answer, or the reason why there is none."""

    answer: Answer | None
    reason: str | None  # one line if it failed, otherwise None
    seconds: float
    peak: int = 0  # bytes of memory, sampled; 0: unknown
    machine: str = ""  # where it ran
    attempts: int = 1
    died: bool = False  # its process ended before it answered, so that another attempt may succeed
    log: str = ""  # what it printed


class Task(ABC):
    """A piece of work; it is pickled, so its class must be importable where it runs."""

    name: str  # for progress and log files
    needs: Needs = Needs()

    @contextmanager
    def scratch(self) -> Generator[Path]:
        """Provide an empty folder for its files, removed at the end."""
        with temporary_folder() as folder:
            yield Path(folder)

    def fetch(self, folder: Path) -> None:  # noqa: B027 (most tasks need nothing)
        """Bring what is not on a local disk into an empty folder."""

    @abstractmethod
    def compute(self, folder: Path) -> Answer:
        """Return the answer, and write result files to the folder, if there are any."""

    def publish(self, folder: Path, answer: Answer) -> None:  # noqa: B027 (most tasks have no files)
        """Move result files from the folder to where they belong, each completely or not at all."""


_ONE_THREAD: Mapping[str, str] = {  # so that sums do not depend on the number of cores
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_MEMORY_SAMPLE_SECONDS = 0.1  # between two looks at the memory of a child
_REUSE_LIMIT_BYTES = 1 << 30  # a child that keeps more than this after its work is not used again
_RENDERING = ("cli", "reporting")  # packages that do not change answers


class Limits(Struct, frozen=True):
    """What one piece of work may use, and the code it must run."""

    seconds: float | None = None
    memory: int | None = None  # bytes, of the child and its own children
    code: str | None = None  # `code_hash` of the command; a worker with other code refuses


class ChildPool:
    """The child processes of this process: idle ones are used again, since starting one takes a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = False

    def run(self, task: Task, folder: Path, limits: Limits) -> Outcome:
        """Compute work in a child, until it replies, dies, or is ended because of a limit."""
        child = self._take()
        watch = _Watch(child, limits)
        watch.start()
        answered = died = False
        try:
            reply = msgspec.json.decode(child.ask((task, folder)), type=Reply)
            answered = True
        except WorkerDied as error:
            died = watch.exceeded is None
            reply = Reply(None, watch.exceeded or f"its process {error}")
        finally:
            watch.stop()
            log = child.printed()
            usable = answered and watch.exceeded is None and child.is_running
            self._give_back(child, keep=usable and _memory(child.process) < _REUSE_LIMIT_BYTES)
        return Outcome(reply.answer, reply.reason, 0.0, watch.peak, died=died, log=log)

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
            child = Worker("sardonyx.fleet.work", _ONE_THREAD) if is_new else self._idle.pop()
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
            if self._ended.wait(_MEMORY_SAMPLE_SECONDS) or self.exceeded is not None:
                return

    def stop(self) -> None:
        self._ended.set()
        self.join()


_DESCRIBING = threading.Lock()
_CHILDREN = ChildPool()  # of a Dask worker, or of whatever else calls `isolated`


def isolated(task: Task, limits: Limits, children: ChildPool | None = None) -> Outcome:
    """Run a piece of work in a child process; every failure becomes the reason of the outcome."""
    start, outcome = time.perf_counter(), Outcome(None, None, 0.0)
    try:
        if limits.code is not None and limits.code != code_hash():
            raise RuntimeFailure(f"the worker on {platform.node()} has another version of sardonyx")
        with task.scratch() as folder, _alone() if task.needs.timed else contextlib.nullcontext():
            task.fetch(folder)
            outcome = (children or _CHILDREN).run(task, folder, limits)
            if outcome.answer is not None:
                task.publish(folder, outcome.answer)
    except WorkerDied as error:  # before it was asked
        outcome = replace(outcome, reason=str(error))
    except Exception as error:  # it ends nothing but this work
        outcome = replace(outcome, answer=None, reason=reason_of(error))
    return replace(outcome, seconds=time.perf_counter() - start, machine=machine())


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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        processor = platform.processor() or platform.machine()
    else:
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        named = fields.get("model name") or f"CPU part {fields.get('CPU part', 'unknown')}"
        processor = f"{platform.machine()} {named}"
    return f"{platform.node()}, {processor}, {os.cpu_count()} cores, {platform.platform()}"


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


class Reply(Struct, frozen=True):
    """The answer of a piece of work, or the reason why there is none."""

    answer: Answer | None
    reason: str | None = None


def compute(request: tuple[Task, Path] | None) -> bytes:
    """Compute a piece of work and return a Reply as JSON, so that answers are equal to those that were stored.

    None is answered at once: it tells that the process has started.
    """
    if request is None:
        return b""
    task, folder = request
    try:
        return msgspec.json.encode(Reply(task.compute(folder)))
    except BaseException as error:  # sys.exit and KeyboardInterrupt too: work that fails does not stop other work
        return msgspec.json.encode(Reply(None, reason_of(error)))
    finally:
        free_memory()  # so that the next work does not depend on this one


def reason_of(error: BaseException) -> str:
    """Return in one line what went wrong; for an error that is not ours, also where."""
    if isinstance(error, SardonyxError):
        text = error.message
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    return " ".join(text.split())


if __name__ == "__main__":
    serve(compute)
