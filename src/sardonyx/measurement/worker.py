"""The process that an isolated model lives in: loads it, feeds it, runs it in turns when asked to."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from sardonyx.errors import SardonyxError
from sardonyx.measurement import machine
from sardonyx.measurement.sessions import Here
from sardonyx.runtime import library
from sardonyx.runtime.worker_process import serve


class _Worker:
    """The requests there are, by name."""

    def __init__(self) -> None:
        self._lane: Here | None = None
        self._before: int | None = None  # bytes that were resident before the model was loaded
        library.onnxruntime()  # so that neither its time nor its memory is counted as the model's

    def load(self, path: str, settings: Any) -> float:
        self._before = machine.resident()
        self._lane = Here(Path(path), settings)
        return self._lane.load_seconds

    def feed(self, feeds: Any, pace: Any) -> tuple[float, int | None]:
        assert self._lane is not None, "a model is loaded before it is fed"
        return self._lane.feed(feeds, pace), machine.grown_since(self._before)

    def turn(self) -> float:
        assert self._lane is not None, "a model is loaded before it is timed"
        return self._lane.turn()

    def answers(self) -> list[Any]:
        return self._lane.answers() if self._lane is not None else []


def main() -> None:
    """Do what is asked; a refusal is an answer too."""
    worker = _Worker()
    gc.disable()  # nothing here makes garbage, and nothing is to be collected while a model is timed

    def answer(request: tuple[Any, ...]) -> tuple[Any, ...]:
        name, *arguments = request
        try:
            return "done", getattr(worker, name)(*arguments)
        except SardonyxError as error:
            return "failed", type(error), error.message, error.hint

    serve(answer)


if __name__ == "__main__":
    main()
