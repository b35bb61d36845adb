"""Runs the commands in README.md and the pages of docs/, and writes their output under them.

    python tests/readme.py [PAGE…]      refreshes the pages, and llms.txt

A block marked `console` is a list of `$ command` lines, each followed by its whole output. Commands run in the order of
the page, on two threads: kernels keep some memory for each. The output of a block marked `console measured` depends on
the machine: the page keeps an earlier output, and the tests only run the commands. README.md and docs/tour.md run in an
empty folder; every other page has its own copy of the files that `prepare` creates. llms.txt is docs/for-agents.md with
links from the root, and skills/sardonyx/SKILL.md the same with a header.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from reporting.gate.sample_records import write_model

ROOT = Path(__file__).parent.parent
PAGE, TOUR, AGENTS = ROOT / "README.md", ROOT / "docs" / "tour.md", ROOT / "docs" / "for-agents.md"
DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page != TOUR and "\n```console" in page.read_text()]
LLMS, SKILL = ROOT / "llms.txt", ROOT / "skills" / "sardonyx" / "SKILL.md"
_SKILL_HEAD = """---
name: sardonyx
description: Export PyTorch models to ONNX, optimize, quantize, verify, compare and measure ONNX files with the sardonyx
  command. Use it when a task involves an ONNX file, ONNX Runtime, or a PyTorch model that is to be deployed.
---

"""
_BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)|(?<=```console measured\n)(.*?)(?=```)", re.DOTALL)
_MEASURED = re.compile(r"(```console measured\n)(.*?)(?=```)", re.DOTALL)
_VARIES = re.compile(r" *\b\d+(\.\d+)? (ms|s)\b| *\b\d(\.\d+)?e[-+]\d+\b")  # times, and differences in the last digits
_SHARE = re.compile(r"\((under )?\d+ % of the tolerance used\)|\(only rounding differs\)")
_ULPS = re.compile(r"(?<=float32)( ~ ~) \d+")  # the largest difference in units in the last place


def refreshed(text: str, folder: Path) -> str:
    """Return the page with the current output of every command."""
    return _BLOCK.sub(lambda block: "".join(play(command, folder) for command in commands(block[0])), text)


def commands(block: str) -> list[str]:
    """The commands of one block."""
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def steady(text: str) -> str:
    """Return the page without what differs between machines: times, last digits, and the column widths they cause."""
    text = _MEASURED.sub(lambda block: block[1] + "\n".join(commands(block[2])) + "\n", text)
    lines = (re.sub(" +", " ", _VARIES.sub(" ~", _SHARE.sub("(~)", line))).rstrip() for line in text.splitlines())
    return "\n".join(_ULPS.sub(r"\1 ~", line) for line in lines)


def prepare(folder: Path) -> str:
    """Create the files that the pages of docs/ begin with: those of the README, and variants.

    Returns:
        The README with the current output of every command.
    """
    text = refreshed(PAGE.read_text(), folder)
    write_model(folder / "model.onnx")
    other = onnx.load(folder / "bert-tiny.onnx")
    weight = next(one for one in other.graph.initializer if one.name.endswith("pooler.dense.weight"))
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    onnx.save(other, folder / "other.onnx")
    foreign = onnx.load(folder / "bert-tiny.onnx")
    for number, node in enumerate(foreign.graph.node):
        paths = [entry.value for entry in node.metadata_props if entry.key == "sardonyx.module_path"]
        scopes = re.sub(r"\.(?=\D)", "/", paths[0]).split("/")  # the tracer writes list members as one name: layer.0
        node.name = "/".join(["", *filter(None, scopes), f"{node.op_type}_{number}"])
    for holder in [foreign, foreign.graph, *foreign.graph.node, *foreign.graph.initializer, *foreign.graph.value_info]:
        del holder.metadata_props[:]
    onnx.save(foreign, folder / "foreign.onnx")
    return text


def for_llms(text: str) -> str:
    """Return the text of llms.txt: the page for coding agents, with links from the root."""
    return _linked(text, "docs")


def for_skill(text: str) -> str:
    """Return the skill: the page for coding agents, with a header that says when it is of use."""
    return _SKILL_HEAD + _linked(text, "../../docs")


def _linked(text: str, folder: str) -> str:
    return re.sub(r"\]\((?!https?:)([^)]+)\)", lambda link: f"]({os.path.normpath(f'{folder}/{link[1]}')})", text)


def copied(prepared: Path, folder: Path) -> Path:
    """Return a folder with a copy of the prepared files."""
    return Path(shutil.copytree(prepared, folder))


def play(command: str, folder: Path) -> str:
    """Return the command with its output, as the page shows it."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": tools, "NO_COLOR": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"$ {command}\n{done.stdout}"


def main(wanted: list[Path]) -> None:
    """Refresh pages."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        begun, tour = fresh / "begun", fresh / "tour"
        begun.mkdir()
        tour.mkdir()
        if set(wanted) & {PAGE, *DOCS}:
            text = prepare(begun)
            if PAGE in wanted:
                PAGE.write_text(text)
        if TOUR in wanted:
            TOUR.write_text(refreshed(TOUR.read_text(), tour))
        for page in [page for page in DOCS if page in wanted]:
            page.write_text(refreshed(page.read_text(), copied(begun, fresh / page.stem)))
    LLMS.write_text(for_llms(AGENTS.read_text()))
    SKILL.write_text(for_skill(AGENTS.read_text()))


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or [PAGE, TOUR, *DOCS])
