"""`sardonyx compare`: show how two models differ, module by module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.reporting.comparison import comparison_document, comparison_sentence
from sardonyx.reporting.document import View

HELP = """\b
Example:
  sardonyx compare model.onnx small.onnx
  sardonyx compare torchscript.onnx dynamo.onnx --depth 3
  sardonyx compare model.onnx small.onnx --json | jq '.moved[].after'

Lists operators that were added, removed, moved to another module, or got other attributes. Nodes are matched by name,
and the remaining ones by module, operator and order. Connections and weights are not compared: `sardonyx verify` checks
whether two models compute the same.

Exit: 0 done, 1 failed, or different with --exit-code, 2 usage, 4 gate not met.
"""

First = Annotated[
    Path, typer.Argument(metavar="FIRST", help="An ONNX file.", callback=check_readable, show_default=False)
]
Second = Annotated[
    Path, typer.Argument(metavar="SECOND", help="An ONNX file.", callback=check_readable, show_default=False)
]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="Exit 1 if the two differ.")]


def compare(
    first: First,
    second: Second,
    depth: options.Depth = None,
    exit_code: ExitCode = False,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.compare` and print its record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    gating = Gating.of("comparison", fail_if, baseline, summary, beside=(first, second))

    from sardonyx import compare as run_compare

    comparison = run_compare(first, second)
    show(
        comparison.to_json, lambda: comparison_document(comparison, View(verbose, depth)), as_json=as_json, quiet=quiet
    )
    return gating.outcome(comparison, comparison_sentence(comparison)) or int(exit_code and not comparison.same)
