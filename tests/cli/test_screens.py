"""The answer of every command about real small models: at most 30 lines of at most 80 columns without -v."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sardonyx.cli.main import VERBS, run

pytest.importorskip("transformers")
LINES, COLUMNS = 30, 80
BERT = (
    "hf-config:BertConfig?hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512,vocab_size=99"
)
RESNET = (
    "hf-config:ResNetForImageClassification"
    "?embedding_size=16,hidden_sizes=[16,32,64,128],depths=[2,2,2,2],layer_type=basic"
)
LAYER = "encoder.layer.0"
SIZES = ("--size", "batch=1", "--size", "sequence=16")
WITHOUT_A_SCREEN = {
    "chat": "prints what a model says",
    "completion": "prints a script for a shell",
    "demo": "prints the answers of other commands",
    "mcp": "serves until its input ends",
    "passes": "is a list",
}
ANSWERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "adopt": (("bert.onnx", "-o", "adopted.onnx"),),
    "analyze": (("bert.onnx", *SIZES), ("bert.onnx", "small.onnx", *SIZES), (BERT,), ("resnet.onnx",)),
    "attest": (("run", "-o", "small.intoto.json"),),
    "bench": (("bert.onnx", "small.onnx", "--seconds", "1", "--starts", "0", *SIZES),),
    "compare": (("bert.onnx", "small.onnx"), ("bert.onnx", "resnet.onnx")),
    "dag": (("bert.onnx", "-o", "bert.json"),),
    "decompose": ((BERT,), (BERT, "-o", "bert.safetensors")),
    "export": ((BERT, "-o", "again.onnx", "--dynamic", "auto", "--optimize"),),
    "extract": (("small.onnx", "-m", LAYER, "-o", "layer.onnx"),),
    "inspect": (
        ("bert.onnx",), ("resnet.onnx",), ("bert.onnx", "small.onnx", "resnet.onnx"), ("bert.onnx", "-m", LAYER),
        ("bert.onnx", "--opportunities"),
    ),
    "locate": (("bert.onnx", "int8.onnx"), ("bert.onnx", "small.onnx")),
    "optimize": (
        ("resnet.onnx", "-o", "r.onnx"), ("bert.onnx", "--dry-run"), ("bert.onnx", "resnet.onnx", "--out-dir", "o"),
    ),
    "placement": (("bert.onnx", "cuda"), ("resnet.onnx", "webgpu")),
    "profile": (("bert.onnx", "small.onnx", "--runs", "2", *SIZES), ("resnet.onnx", "--runs", "2")),
    "quantize": (("bert.onnx", "-o", "q.onnx", "--to", "int8", *SIZES),),
    "rederive": (("run",),),
    "report": (("bert.onnx", "-o", "bert.html"), ("run", "-o", "run.html")),
    "study": (("resnet.onnx", "-o", "study", "--only", "forensics", "--no-timing"),),
    "verify": (("bert.onnx", "small.onnx"), ("bert.onnx", "int8.onnx")),
}  # fmt: skip
CASES = [
    pytest.param(verb, words, id=f"{verb} {' '.join(words)[:40]}")
    for verb, answers in ANSWERS.items()
    for words in answers
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models, an optimized one with its run, and a quantized one."""
    folder = tmp_path_factory.mktemp("screens")
    here = Path.cwd()
    os.chdir(folder)
    try:
        for words in (
            ["export", BERT, "-o", "bert.onnx", "--dynamic", "auto", "--verify", "off"],
            ["export", RESNET, "-o", "resnet.onnx", "--verify", "off"],
            ["optimize", "bert.onnx", "-o", "small.onnx", "--run", "run", "--seconds", "1"],
            ["quantize", "bert.onnx", "-o", "int8.onnx", "--to", "int8", *SIZES],
        ):
            assert run([*words, "--quiet"]) == 0
    finally:
        os.chdir(here)
    return folder


def test_every_command_is_here() -> None:
    assert {*ANSWERS, *WITHOUT_A_SCREEN} == {*VERBS}


@pytest.mark.campaign
@pytest.mark.parametrize(("verb", "words"), CASES)
def test_the_answer_is_one_screen(verb: str, words: tuple[str, ...], folder: Path) -> None:
    code, text = in_terminal([verb, *words], folder)
    assert code in (0, 3), text
    lines = text.splitlines()
    assert len(lines) <= LINES, text
    assert [line for line in lines if len(line) > COLUMNS] == [], text


def in_terminal(words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command in a terminal of its own, with errors in a file: progress is not shown, and would be erased."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    environment["TERM"] = "xterm"
    command = [sys.executable, "-m", "sardonyx", *words]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=errors, cwd=folder, env=environment)
        os.close(its)
        read = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process ends
            while part := os.read(ours, 1 << 16):
                read += part
        os.close(ours)
        code = process.wait()
        errors.seek(0)
        read += errors.read()
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode()).replace("\r", "")
