"""Plays the commands that README.md shows and puts what they say under them.

    python tests/readme.py      refreshes the page

A block marked `console` is a list of `$ command` lines, each followed by its whole output. Commands run in one fresh
folder, in the order of the page, on two threads: kernels keep some memory for each. What a block marked
`console measured` says depends on the machine: the page shows what it said once, and only that it runs is tested.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)|(?<=```console measured\n)(.*?)(?=```)", re.DOTALL)
_MEASURED = re.compile(r"(```console measured\n)(.*?)(?=```)", re.DOTALL)
_VARIES = re.compile(r" *\b\d+(\.\d+)? (ms|s)\b| *\b\d(\.\d+)?e[-+]\d+\b")  # times, and differences in the last digits


def refreshed(text: str, folder: Path) -> str:
    """The page with every command's present output."""
    return _BLOCK.sub(lambda block: "".join(_played(command, folder) for command in commands(block[0])), text)


def commands(block: str) -> list[str]:
    """The commands of one block."""
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def steady(text: str) -> str:
    """The page without what differs from machine to machine: times, last digits, and the column widths they make."""
    text = _MEASURED.sub(lambda block: block[1] + "\n".join(commands(block[2])) + "\n", text)
    return "\n".join(re.sub(" +", " ", _VARIES.sub(" ~", line)).rstrip() for line in text.splitlines())


def _played(command: str, folder: Path) -> str:
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as fresh:
        PAGE.write_text(refreshed(PAGE.read_text(), Path(fresh)))
