"""`sardonyx chat`: answers from a folder, and what it says if something is missing."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose tokens are the bytes of a text."""
    pytest.importorskip("torch")
    import sardonyx

    config = "GPT2Config?n_embd=24,n_layer=1,n_head=4,vocab_size=256,n_positions=64,bos_token_id=0,eos_token_id=255"
    folder = tmp_path_factory.mktemp("chat") / "folder"
    sardonyx.export(f"hf-config:{config}", None, folder, exporter="torchscript", for_generation=True, verify="off")
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {char: number for number, char in enumerate(alphabet)}, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level}
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "decoder": byte_level, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))


def test_text_of_a_pipe_is_continued(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_genai")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello there\n"))
    done = command("chat", folder, "--max-tokens", 12, "--threads", 1)
    assert done.code == 0
    assert done.out.endswith("\n")
    assert re.fullmatch(r"\d+ tokens, first after [\d.]+ s, [\d.]+ tokens/s\n", done.err)


def test_a_line_that_is_typed_gets_an_answer(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_genai")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("Hello\nAgain\n\nNever read\n"))
    done = command("chat", folder, "--max-tokens", 3)
    assert done.code == 0
    assert done.err.count("3 tokens, first after") == 2


def test_what_is_missing_is_said_in_one_line(
    folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command("chat", tmp_path)
    assert (done.code, done.err.splitlines()[0]) == (1, f"error: {tmp_path} is not a folder with a genai_config.json")
    (tmp_path / "genai_config.json").write_text('{"model": {}}')
    done = command("chat", tmp_path)
    assert done.code == 1
    assert "does not describe a decoder" in done.err
    (tmp_path / "genai_config.json").write_bytes((folder / "genai_config.json").read_bytes())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime_genai", None)
        done = command("chat", folder)
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: chat needs onnxruntime-genai, which is not installed",
        'hint: in a checkout of sardonyx: pip install ".[chat]"',
    ]
    pytest.importorskip("onnxruntime_genai")
    done = command("chat", tmp_path)
    assert done.code == 2
    assert done.err.startswith(f"error: {tmp_path} has no tokenizer.json\nhint: ")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = command("chat", folder)
    assert done.code == 2
    assert done.err.startswith("error: there is no prompt on standard input")
