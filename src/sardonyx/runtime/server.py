"""The worker process of `remote`: holds the models that another process has opened, and runs them on request.

It generates text with onnxruntime-genai, in a folder that holds a decoder, its `genai_config.json` and a tokenizer.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from sardonyx.common.errors import RuntimeFailure, SardonyxError
from sardonyx.runtime import library
from sardonyx.runtime.library import Engine, Source
from sardonyx.runtime.sessions import Runtime, Session, evaluate, load
from sardonyx.runtime.worker_process import serve

PACKAGE = "onnxruntime_genai"


class Generated(Struct, frozen=True):
    """What a decoder generated, and where."""

    runtime: str  # with its version
    tokens: tuple[int, ...] = ()
    seconds: float | None = None  # of all tokens but the first, which takes the prompt; None: nothing was generated


def is_installed() -> bool:
    """Return whether onnxruntime-genai is."""
    return importlib.util.find_spec(PACKAGE) is not None


class Decoder:
    """A decoder in onnxruntime-genai.

    Args:
        folder: The folder.
        threads: Threads of the runtime.
        end: The token that ends and pads texts; those of the folder if None.

    Raises:
        RuntimeFailure: The runtime does not load the folder.
    """

    def __init__(self, folder: Path, *, threads: int | None = None, end: int | None = None) -> None:
        library.onnxruntime()  # first: it switches telemetry off
        self._genai: Any = importlib.import_module(PACKAGE)
        self.name = f"onnxruntime-genai {self._genai.__version__}"
        try:
            config = self._genai.Config(str(folder))
            if threads is not None:
                options = {"session_options": {"intra_op_num_threads": threads}}
                config.overlay(json.dumps({"model": {"decoder": options}}))
            if end is not None:  # it also hides every padding token of a prompt; a list of tokens would be appended
                config.overlay(json.dumps({"model": {"eos_token_id": end, "pad_token_id": end}}))
            self._model = self._genai.Model(config)
        except Exception as error:  # it raises types of its own and of the standard library
            raise RuntimeFailure(f"{self.name} does not load the folder: {library.one_line(error)}") from error

    def tokenizer(self) -> Any:
        """Return the folder's tokenizer: `encode`, `create_stream` and `apply_chat_template`."""
        return self._genai.Tokenizer(self._model)

    def stream(self, prompt: Sequence[int], most: int) -> Iterator[int]:
        """Yield the most likely tokens after a prompt, one by one, at most so many.

        Raises:
            RuntimeFailure: The decoder fails on these tokens.
        """
        try:
            params = self._genai.GeneratorParams(self._model)
            params.set_search_options(do_sample=False, max_length=len(prompt) + most)
            generator = self._genai.Generator(self._model, params)
            generator.append_tokens(np.asarray([prompt], np.int32))
            while not generator.is_done():
                generator.generate_next_token()
                yield int(generator.get_next_tokens()[0])
        except RuntimeError as error:
            raise RuntimeFailure(f"{self.name} cannot generate: {library.one_line(error)}") from error


def generate(folder: Path, prompt: Sequence[int], count: int, end: int, threads: int | None) -> Generated:
    """Load a folder and generate so many tokens, unless the end token is among them."""
    decoder = Decoder(folder, threads=threads, end=end)
    tokens = decoder.stream(prompt, count)
    first = next(tokens)
    began = time.perf_counter()
    return Generated(decoder.name, (first, *tokens), time.perf_counter() - began)


class _Server:
    """The requests that the worker answers, by name."""

    def __init__(self) -> None:
        self._engines: dict[int, Engine] = {}

    def open(
        self, number: int, runtime: Runtime, source: Source, threads: int | None, profile: bool, optimize: bool
    ) -> str:
        self._engines[number] = load(runtime, source, threads=threads, profile=profile, optimize=optimize)
        return self._engines[number].name

    def run(self, number: int, feeds: Any) -> tuple[list[Any], float, int]:
        """Return the outputs, the time in seconds, and the peak memory of this process during the run."""
        _reset_peak()
        start = time.perf_counter()
        outputs = self._engines[number].run(feeds)
        return outputs, time.perf_counter() - start, _peak_bytes()

    def run_each(self, number: int, many: list[Any]) -> list[Any]:
        """Return the outputs for each of the feeds, or the failure."""
        return [self._outputs_or_failure(number, feeds) for feeds in many]

    def _outputs_or_failure(self, number: int, feeds: Any) -> list[Any] | SardonyxError:
        try:
            return self._engines[number].run(feeds)
        except SardonyxError as failure:
            return failure

    evaluate = staticmethod(evaluate)
    generate = staticmethod(generate)

    def executed(self, number: int) -> frozenset[str] | None:
        """Return the names of the nodes that ran since the model was opened, or None if they are not recorded."""
        engine = self._engines[number]
        return engine.executed() if isinstance(engine, Session) else None

    def close(self, number: int) -> None:
        self._engines.pop(number, None)

    def free(self) -> None:
        """Return memory that closed models have used to the system, if its C library can."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Return the peak resident memory since the last reset, or 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Answer requests; a failure is a reply as well."""
    warnings.simplefilter("ignore")
    library.onnxruntime()  # loaded while the calling process prepares its first request
    server = _Server()

    def answer(request: tuple[Any, ...]) -> tuple[Any, ...]:
        name, *arguments = request
        try:
            return "done", getattr(server, name)(*arguments)
        except SardonyxError as error:
            return "failed", type(error), error.message, error.hint
        except MemoryError:
            return "failed", SardonyxError, "there is not enough memory", None

    serve(answer)


if __name__ == "__main__":
    main()
