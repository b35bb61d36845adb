"""The process that an isolated model lives in: reads a request, does it, writes the reply, until nobody asks.

Requests and replies are pickled tuples on the standard streams. Whatever native code prints goes to standard error, so
that it cannot be taken for a reply; when the asking process ends, however it ends, reading fails and this one ends too.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from pathlib import Path
from typing import Any, BinaryIO

from sardonyx.errors import SardonyxError
from sardonyx.measure import memory
from sardonyx.measure.lanes import Here
from sardonyx.runtime import library


class _Worker:
    """The requests there are, by name."""

    def __init__(self) -> None:
        self._lane: Here | None = None
        self._before: int | None = None  # bytes that were resident before the model was loaded
        library.onnxruntime()  # so that neither its time nor its memory is counted as the model's

    def load(self, path: str, settings: Any) -> float:
        self._before = memory.resident()
        self._lane = Here(Path(path), settings)
        return self._lane.load_seconds

    def feed(self, feeds: Any, pace: Any) -> tuple[float, int | None]:
        assert self._lane is not None, "a model is loaded before it is fed"
        return self._lane.feed(feeds, pace), memory.grown_since(self._before)

    def turn(self) -> float:
        assert self._lane is not None, "a model is loaded before it is timed"
        return self._lane.turn()

    def answers(self) -> list[Any]:
        return self._lane.answers() if self._lane is not None else []


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until nobody asks."""
    worker = _Worker()
    gc.disable()  # nothing here makes garbage, and nothing is to be collected while a model is timed
    while True:
        try:
            name, *arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            reply: tuple[Any, ...] = ("done", getattr(worker, name)(*arguments))
        except SardonyxError as error:
            reply = ("failed", type(error), error.message, error.hint)
        pickle.dump(reply, replies, protocol=pickle.HIGHEST_PROTOCOL)
        replies.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, replies)
