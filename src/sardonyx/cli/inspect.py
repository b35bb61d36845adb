"""`sardonyx inspect`: show the structure of a model and what could be optimized in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from sardonyx.cli import options, several
from sardonyx.cli.console import Progress, progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.cli.several import Printed
from sardonyx.cli.streams import STREAM, on_disk
from sardonyx.errors import UsageError
from sardonyx.records.inspection import Inspection, ModuleInspection
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.inspection import (
    inspection_document,
    inspection_sentence,
    inspections_document,
    module_document,
    module_sentence,
    opportunities_document,
    opportunities_sentence,
)

HELP = """\b
Example:
  sardonyx inspect model.onnx
  sardonyx inspect *.onnx
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
    models: options.Models,
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
    gating = Gating.of(kind, fail_if, baseline, summary, beside=models)
    printed = Printed(as_json, quiet, verbose)
    reject_both("--opportunities", opportunities, "--module", module is not None)
    reject_both("--opportunities", opportunities, "--depth", depth is not None)
    if target is not None and not opportunities:
        raise UsageError("--target is for --opportunities", hint="add --opportunities")
    if len(models) > 1:
        several.reject({"--module": module, "--baseline": baseline, "--opportunities": opportunities or None})
        return _inspect_each(models, gating, View(verbose, depth), printed, debug=debug)
    if models[0] != STREAM:
        options.check_readable(models[0])
    with on_disk(models[0]) as (model, _):
        if opportunities:
            return _show_opportunities(model, target or options.Target.PORTABLE, gating, printed)

        from sardonyx import inspect as run_inspect

        record = run_inspect(model) if module is None else run_inspect(model, module=module)
        if models[0] == STREAM:
            record = _from_stream(record)
        show(record.to_json, lambda: _document(record, View(verbose, depth)), as_json=as_json, quiet=quiet)
        return gating.outcome(record, _sentence(record))


def _inspect_each(models: Sequence[Path], gating: Gating, view: View, printed: Printed, *, debug: bool) -> int:
    """Inspect several models and print one table."""
    from sardonyx import inspect as run_inspect

    def work(model: Path, _report: Progress | None) -> tuple[Inspection, int]:
        record = run_inspect(model)
        return record, gating.outcome(record, inspection_sentence(record), label=f"{model}: ")

    results = several.run_each(models, work, shown=not printed.quiet, debug=debug)
    return several.show(results, inspections_document, lambda one, _view: inspection_document(one, view), printed)


def _from_stream(record: Inspection | ModuleInspection) -> Inspection | ModuleInspection:
    """Return a record that names standard input as the user named it."""
    if isinstance(record, Inspection):
        return replace(record, path=str(STREAM))
    return replace(record, model=str(STREAM))


def _show_opportunities(model: Path, target: options.Target, gating: Gating, printed: Printed) -> int:
    from sardonyx import opportunities

    with progress(not printed.quiet) as report:
        record = opportunities(model, target=target.value, progress=report)
    view = View(printed.verbose)
    show(
        record.to_json,
        lambda: opportunities_document(record, view),
        as_json=printed.as_json,
        quiet=printed.quiet,
    )
    return gating.outcome(record, opportunities_sentence(record))


def _sentence(record: Inspection | ModuleInspection) -> str:
    return inspection_sentence(record) if isinstance(record, Inspection) else module_sentence(record)


def _document(record: Inspection | ModuleInspection, view: View) -> Document:
    return inspection_document(record, view) if isinstance(record, Inspection) else module_document(record, view)
