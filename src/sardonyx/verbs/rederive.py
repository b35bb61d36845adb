"""`sardonyx rederive`: make an optimized file again, and compare the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import progress, put
from sardonyx.errors import VerificationFailed
from sardonyx.reporting.formatting import one_line
from sardonyx.verbs.attest import Source

HELP = """\b
Example:
  sardonyx rederive runs/today
  sardonyx rederive small.onnx --source model.onnx

Optimizes the source again with the recorded options and compares every byte with the result. The options are those of
the record, of a statement of `attest`, or in the metadata of the file.

Exit: 0 the same bytes, 1 failed, 2 usage, 3 other bytes.
"""

Result = Annotated[
    Path,
    typer.Argument(
        metavar="RESULT", help="An optimized file, its record, run folder or statement.", show_default=False
    ),
]


def rederive(
    result: Result,
    source: Source = None,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.rederive` and print what it found."""
    from sardonyx import rederive as run_rederive

    with progress(True) as report:
        found = run_rederive(result, source=source, progress=report)
    what = "the same bytes" if found.same else f"other bytes ({found.difference})"
    put(one_line(f"{what}: {found.result} from {found.source}") + "\n")
    return 0 if found.same else VerificationFailed.exit_code
