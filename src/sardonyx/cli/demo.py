"""`sardonyx demo`: the tour in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.errors import OutputError

SUMMARY = "Take a small transformer and a CNN all the way to one page about both."
HELP = """\b
Example:
  sardonyx demo
  sardonyx demo tour/ --force

Builds both from their configs with seeded weights; nothing is downloaded. Exports them with their modules, optimizes
with proof, times, profiles and analyzes before and after, spells attention out, cuts one layer out, and writes
FOLDER/report.html. Each command is printed just before it runs, as you would type it, and its closing lines after; what
it said in whole is in FOLDER/log.txt. Takes a minute or two on two cores. Needs the torch extra.

Exit: 0 done, 2 usage, else the exit code of the command that failed.
"""

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the files go.")]


def demo(folder: Folder = Path("demo"), force: options.Force = False, debug: options.Debug = False) -> int:
    """Run the tour."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="name another one")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputError(f"{folder} is not empty", hint="--force replaces the files of an earlier demo in it")

    from sardonyx.demo import run

    run(folder, say=lambda line: put(line + "\n"))
    return 0
