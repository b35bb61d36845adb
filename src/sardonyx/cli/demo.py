"""`sardonyx demo`: the tour in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.errors import OutputError

SUMMARY = "Export, optimize, verify and cut up a small BERT."
HELP = """\b
Example:
  sardonyx demo tour/

Builds BERT-tiny from its config with seeded weights and runs export, inspect, optimize, verify and extract on it, just
as you would. Nothing is downloaded. Needs the torch extra.
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
