"""`sardonyx inspect`: show the structure of a model and what could be optimized in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.errors import UsageError
from sardonyx.records.inspection import Inspection, ModuleInspection
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.inspection import (
    inspection_document,
    inspection_sentence,
    module_document,
    module_sentence,
    opportunities_document,
    opportunities_sentence,
)

HELP = """\b
Example:
  sardonyx inspect model.onnx
  sardonyx inspect model.onnx --depth 6
  sardonyx inspect model.onnx --module '/BertModel/BertEncoder/BertLayer.0'
  sardonyx inspect model.onnx --opportunities --target ort
  sardonyx inspect model.onnx --json | jq .opsets

Shows the opsets, sizes, interface, operators and module tree of a model, and a guess of its architecture. Identical
layers are one line (×12) with the sums of all. No weight is read and nothing is run. With --opportunities, shows the
patterns that optimizers look for, how many would be left after every pass, and why. Several models are one table with
a row for each. docs/inspect.md explains the output.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

Opportunities = Annotated[
    bool, typer.Option("--opportunities", help="Show what could be fused or eliminated, and why the rest could not.")
]
Target = Annotated[
    options.Target | None,
    typer.Option("--target", help="With --opportunities: operators that passes may use. [default: portable]"),
]


def inspect(
    model: options.Model,
    module: options.Module = None,
    depth: options.Depth = None,
    opportunities: Opportunities = False,
    target: Target = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.inspect` or `sardonyx.opportunities` and print the record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    kind = "opportunities" if opportunities else "inspection" if module is None else "module"
    gating = Gating.of(kind, fail_if, baseline, summary, beside=(model,))
    if opportunities:
        reject_both("--opportunities", True, "--module", module is not None)
        reject_both("--opportunities", True, "--depth", depth is not None)
        return _show_opportunities(model, target or options.Target.PORTABLE, gating, as_json, quiet, verbose)
    if target is not None:
        raise UsageError("--target is for --opportunities", hint="add --opportunities")

    from sardonyx import inspect as run_inspect

    record = run_inspect(model) if module is None else run_inspect(model, module=module)
    show(record.to_json, lambda: _document(record, View(verbose, depth)), as_json=as_json, quiet=quiet)
    return gating.outcome(record, _sentence(record))


def _show_opportunities(
    model: Path, target: options.Target, gating: Gating, as_json: bool, quiet: bool, verbose: bool
) -> int:
    from sardonyx import opportunities

    with progress(not quiet) as report:
        record = opportunities(model, target=target.value, progress=report)
    show(record.to_json, lambda: opportunities_document(record, View(verbose)), as_json=as_json, quiet=quiet)
    return gating.outcome(record, opportunities_sentence(record))


def _sentence(record: Inspection | ModuleInspection) -> str:
    return inspection_sentence(record) if isinstance(record, Inspection) else module_sentence(record)


def _document(record: Inspection | ModuleInspection, view: View) -> Document:
    return inspection_document(record, view) if isinstance(record, Inspection) else module_document(record, view)
