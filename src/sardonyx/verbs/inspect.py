"""`sardonyx inspect`: show the structure of a model and what could be optimized in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from sardonyx.cli import options, single
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.cli.streams import STREAM, on_disk
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
  sardonyx inspect *.onnx
  sardonyx inspect model.onnx --depth 6
  sardonyx inspect model.onnx --module '/BertModel/BertEncoder/BertLayer.0'
  sardonyx inspect model.onnx --opportunities --target ort
  sardonyx inspect model.onnx --json | jq .opsets

Shows the opsets, sizes, interface, operators and module tree of a model, and a guess of its architecture. Identical
layers are one line (×12) with the sums of all. No weight is read and nothing is run. With --opportunities, shows
what each pass would rewrite and what it would skip for which reason. Several models are one table with a row for
each. docs/inspect.md explains the output.

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
    context: typer.Context,
    models: options.Models,
    module: options.Module = None,
    depth: options.Depth = None,
    opportunities: Opportunities = False,
    target: Target = None,
    out_dir: options.OutDir = None,
    force: options.Force = False,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    keep_going: options.KeepGoing = True,
    allow_code: options.AllowCode = False,
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
    planned = single.plan(models, None, None, "", writes=False)
    many = planned is None or out_dir is not None
    gating = Gating.of(kind, fail_if, baseline, summary, beside=[Path(model) for model in models], many=many)
    reject_both("--opportunities", opportunities, "--module", module is not None)
    reject_both("--opportunities", opportunities, "--depth", depth is not None)
    if target is not None and not opportunities:
        raise UsageError("--target is for --opportunities", hint="add --opportunities")
    if planned is None or out_dir is not None:
        single.reject({"--module": module, "--baseline": baseline, "--opportunities": opportunities or None})
        from sardonyx.cli.many import Shown, run_many
        from sardonyx.fleet.sources import find_sources

        view = View(True, depth)
        shown = Shown(lambda one, _: inspection_sentence(one), lambda one, _: inspection_document(one, view))
        return run_many(context, find_sources(models, exclude=out_dir), gating, shown, writes=False)
    with on_disk(planned.source) as (model, _):
        if opportunities:
            return _show_opportunities(
                model, target or options.Target.PORTABLE, gating, as_json=as_json, quiet=quiet, view=View(verbose)
            )

        from sardonyx import inspect as run_inspect

        record = run_inspect(model) if module is None else run_inspect(model, module=module)
        if planned.source == STREAM:
            record = _from_stream(record)
        show(record.to_json, lambda: _document(record, View(verbose, depth)), as_json=as_json, quiet=quiet)
        return gating.outcome(record, _sentence(record))


def _from_stream(record: Inspection | ModuleInspection) -> Inspection | ModuleInspection:
    """Return a record that names standard input as the user named it."""
    if isinstance(record, Inspection):
        return replace(record, path=str(STREAM))
    return replace(record, model=str(STREAM))


def _show_opportunities(
    model: Path, target: options.Target, gating: Gating, *, as_json: bool, quiet: bool, view: View
) -> int:
    from sardonyx import opportunities

    with progress(not quiet) as report:
        record = opportunities(model, target=target.value, progress=report)
    show(record.to_json, lambda: opportunities_document(record, view), as_json=as_json, quiet=quiet)
    return gating.outcome(record, opportunities_sentence(record))


def _sentence(record: Inspection | ModuleInspection) -> str:
    return inspection_sentence(record) if isinstance(record, Inspection) else module_sentence(record)


def _document(record: Inspection | ModuleInspection, view: View) -> Document:
    return inspection_document(record, view) if isinstance(record, Inspection) else module_document(record, view)
