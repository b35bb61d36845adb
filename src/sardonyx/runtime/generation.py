"""Text generation with onnxruntime-genai, in a folder that holds a decoder, its `genai_config.json` and a tokenizer.

It is not a part of `server`, which runs as `__main__`: what that defines cannot be sent to another process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import library

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
