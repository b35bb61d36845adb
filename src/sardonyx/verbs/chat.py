"""Talk to a language model that `export --for-generation` wrote.

Example:
  sardonyx chat folder
  sardonyx chat folder --max-tokens 40 --threads 2

Generates the most likely answer to each line that you type, token by token, until an empty line. Text from a pipe is
one prompt. The folder's chat template is applied if it has one; otherwise the text is continued. `sardonyx export
--for-generation` writes such a folder. Needs onnxruntime-genai; in a checkout of sardonyx: pip install ".[chat]".

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.cli.console import note, put
from sardonyx.cli.options import THREADS, Option, argument
from sardonyx.cli.verb import Given, Verb
from sardonyx.errors import UsageError, install_hint

if TYPE_CHECKING:
    from sardonyx.runtime.generation import Decoder

_TOKENIZER, _TEMPLATE = "tokenizer.json", "chat_template"


def _run(given: Given) -> int:
    from sardonyx.ir.io.decoder_folder import DecoderFolder
    from sardonyx.runtime import generation

    folder: Path = given.folder
    DecoderFolder.require(folder)
    if not generation.is_installed():
        raise UsageError("chat needs onnxruntime-genai, which is not installed", hint=install_hint("chat"))
    if not (folder / _TOKENIZER).is_file():
        raise UsageError(
            f"{folder} has no {_TOKENIZER}",
            hint="export a checkpoint with a tokenizer, or copy its files to the folder",
        )
    decoder = generation.Decoder(folder, threads=given.threads)
    conversation = _Conversation(decoder, has_template=_has_template(folder))
    for text in _prompts():
        conversation.answer(text, given.max_tokens)
    return 0


def _prompts() -> Iterator[str]:
    """Yield the lines that the user types, until an empty one, or the whole text of a pipe."""
    if not sys.stdin.isatty():
        text = sys.stdin.read().rstrip("\n")
        if not text:
            raise UsageError("there is no prompt on standard input", hint="echo 'Hello' | sardonyx chat FOLDER")
        yield text
        return
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not line:
            return
        yield line


def _has_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    return (folder / f"{_TEMPLATE}.jinja").is_file() or (
        config.is_file() and _TEMPLATE in json.loads(config.read_bytes())
    )


class _Conversation:
    """The messages so far."""

    def __init__(self, decoder: Decoder, *, has_template: bool) -> None:
        self._decoder, self._tokenizer, self._has_template = decoder, decoder.tokenizer(), has_template
        self._messages: list[dict[str, str]] = []

    def answer(self, text: str, most: int) -> None:
        """Print the answer to a prompt token by token, then how fast it was."""
        self._messages.append({"role": "user", "content": text})
        if self._has_template:
            text = self._tokenizer.apply_chat_template(json.dumps(self._messages), add_generation_prompt=True)
        stream, parts = self._tokenizer.create_stream(), list[str]()
        began = first = time.perf_counter()
        for token in self._decoder.stream([int(each) for each in self._tokenizer.encode(text)], most):
            first = first if parts else time.perf_counter()
            parts.append(stream.decode(token))
            put(parts[-1])
        put("\n")
        self._messages.append({"role": "assistant", "content": "".join(parts)})
        spent = time.perf_counter() - first
        speed = f", {(len(parts) - 1) / spent:.1f} tokens/s" if len(parts) > 1 and spent else ""
        note(f"{len(parts)} tokens, first after {first - began:.2f} s{speed}")


VERB = Verb(
    options=(
        argument("folder", "FOLDER", "A folder of `export --for-generation`.", Path, checked=True),
        Option("max_tokens", "N", "Tokens of an answer at most.", type=int, default=256, least=1),
        THREADS,
    ),
    run=_run,
)  # fmt: skip
