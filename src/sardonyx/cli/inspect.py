"""`sardonyx inspect`: what a model is made of."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put, put_json, style_for
from sardonyx.cli.options import reject_both
from sardonyx.report.view import View

SUMMARY = "Show what a model is made of."
HELP = """\b
Example:
  sardonyx inspect model.onnx
  sardonyx inspect model.onnx --depth 6
  sardonyx inspect model.onnx --json | jq .opsets

Opsets, sizes, interface, dynamic dims, operators, and the module tree with nodes and parameters. Equal layers are shown
as one (×12), with the numbers of all. Weights are not read, nothing is run.

Exit: 0 done, 1 failed, 2 usage.
"""

Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", metavar="N", min=0, help="Levels of the module tree; -v shows all. [default: as many as read well]"
    ),
]


def inspect(
    model: options.Model,
    depth: Depth = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb and show its Inspection."""
    reject_both("--quiet", quiet, "--verbose", verbose)

    from sardonyx import inspect as look
    from sardonyx.report.model import inspection_sentence, render_inspection

    found = look(model)
    style = style_for(sys.stdout)
    if as_json:
        put_json(found.to_json())
    elif quiet:
        put(style.strong(inspection_sentence(found)) + "\n")
    else:
        put(render_inspection(found, View(style, verbose, depth)))
    return 0
