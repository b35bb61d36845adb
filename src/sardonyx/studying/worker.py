"""A process that computes cells, one after another, as they are handed to it on its standard input.

A fresh interpreter rather than a fork or `multiprocessing`: nothing is inherited, a script that calls `study` needs no
`if __name__ == "__main__"`, and what the parent's death leaves behind ends itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import time
import traceback
from typing import IO

import msgspec

from sardonyx.errors import SardonyxError
from sardonyx.studying.experiment import Cell, Experiment, Outcome, Subject

Order = tuple[Experiment, Cell, Subject]
_LENGTH = struct.Struct("<Q")


def send(stream: IO[bytes], data: bytes) -> None:
    """Write one message."""
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None where the other side is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    return data if len(data) == size else None


def main() -> None:
    """Answer orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops us, and says so
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print must not get among the answers
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order: Order = pickle.loads(orders.get())
        send(answers, msgspec.json.encode(computed(*order)))


def computed(experiment: Experiment, cell: Cell, subject: Subject) -> Outcome:
    """Run one cell; whatever goes wrong in it becomes its reason."""
    began = time.perf_counter()
    answer, reason = None, None
    try:
        answer = experiment.run(cell, subject)
        msgspec.json.encode(answer)
    except SardonyxError as error:
        answer, reason = None, error.message
    except Exception as error:  # one cell's fault is not the study's; where it was is in the reason
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer, reason = None, f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    return Outcome(answer, " ".join(reason.split()) if reason else None, time.perf_counter() - began)


def _listen(orders: queue.Queue[bytes]) -> None:
    """Pass orders on; when the parent is gone, go too, whatever is under way."""
    with contextlib.suppress(OSError):
        while (data := receive(sys.stdin.buffer)) is not None:
            orders.put(data)
    os._exit(0)


if __name__ == "__main__":
    main()
