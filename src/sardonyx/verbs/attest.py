"""`sardonyx attest`: say how an optimized file was made, as an in-toto statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import put

HELP = """\b
Example:
  sardonyx attest runs/today -o small.onnx.intoto.json
  sardonyx attest small.onnx --source model.onnx

Writes an in-toto statement (v1) about a file that `optimize` wrote: the SHA-256 sums of the result and of its source,
the version, the options, and the certificate. Other programs sign it: docs/attest.md.

Exit: 0 done, 1 failed, 2 usage.
"""

Result = Annotated[
    Path,
    typer.Argument(
        metavar="RESULT", help="An optimized file, its record, or the folder of its run.", show_default=False
    ),
]
Source = Annotated[
    Path | None,
    typer.Option("--source", metavar="FILE", help="The file that was optimized. [default: as the record says]"),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="The certificate of the result. [default: that of the run]"),
]
Output = Annotated[Path | None, options.output("standard output")]


def attest(
    result: Result,
    source: Source = None,
    certificate: Certificate = None,
    output: Output = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> int:
    """Write the statement of `sardonyx.attest`."""
    files.check_free(output, force=force)

    from sardonyx import attest as run_attest

    text = json.dumps(run_attest(result, source=source, certificate=certificate), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        put(text)
    else:
        files.write_whole(output, text.encode(), force=force)
    return 0
