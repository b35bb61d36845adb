"""The worker process of an isolated session: loads a model, feeds it, and times slots on request."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from sardonyx.errors import SardonyxError
from sardonyx.runtime import library
from sardonyx.runtime.sessions import Runtime
from sardonyx.runtime.worker_process import serve
from sardonyx.verbs.bench import machine
from sardonyx.verbs.bench.sessions import BrowserSession, LocalSession


class _Worker:
    """One method per request."""

    def __init__(self) -> None:
        self._session: LocalSession | BrowserSession | None = None
        self._before: int | None = None  # bytes resident before the model was loaded
        library.onnxruntime()  # imported now, so that neither its time nor its memory counts as the model's

    def load(self, path: str, settings: Any) -> tuple[float, str]:
        in_browser = settings.runtime is Runtime.WEB_WASM
        self._before = None if in_browser else machine.resident()
        self._session = (BrowserSession if in_browser else LocalSession)(Path(path), settings)
        return self._session.load_seconds, self._session.name

    def feed(self, feeds: Any, options: Any) -> tuple[float, int | None]:
        assert self._session is not None, "a model is loaded before it is fed"
        return self._session.feed(feeds, options), machine.grown_since(self._before)

    def turn(self) -> float:
        assert self._session is not None, "a model is loaded before it is timed"
        return self._session.turn()

    def outputs(self) -> list[Any]:
        return self._session.outputs() if self._session is not None else []


def main() -> None:
    """Serve requests; errors of the library are sent back as replies."""
    worker = _Worker()
    gc.disable()  # collecting garbage would disturb the timings

    def answer(request: tuple[Any, ...]) -> tuple[Any, ...]:
        name, *arguments = request
        try:
            return "done", getattr(worker, name)(*arguments)
        except SardonyxError as error:
            return "failed", type(error), error.message, error.hint

    serve(answer)


if __name__ == "__main__":
    main()
