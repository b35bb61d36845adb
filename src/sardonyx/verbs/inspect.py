"""Show the modules, operators, sizes and interface of a model.

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

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from sardonyx.cli import files, options
from sardonyx.cli.console import progress
from sardonyx.cli.files import STREAM, on_disk
from sardonyx.cli.options import Option, switch
from sardonyx.cli.verb import Given, Verb
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


def _run(given: Given) -> int:
    models, module = given.models, given.module
    kind = "opportunities" if given.opportunities else "inspection" if module is None else "module"
    planned = files.plan(models, None, None, "", writes=False)
    many = planned is None or given.out_dir is not None
    given.check(kind, many=many)
    given.reject("opportunities", "module", "depth")
    if given.is_typed("target") and not given.opportunities:
        raise UsageError("--target is for --opportunities", hint="add --opportunities")
    if planned is None or many:
        one = ("module", "baseline", "opportunities")
        files.reject({given.flag(name): getattr(given, name) or None for name in one})
        from sardonyx.fleet.sources import find_sources

        return given.run_many(find_sources(models, exclude=given.out_dir), writes=False)
    with on_disk(planned.source) as (model, _):
        if given.opportunities:
            return _show_opportunities(given, model)
        record = given.call(model)
        if planned.source == STREAM:
            record = _from_stream(record)
        return given.finish(record)


def _from_stream(record: Inspection | ModuleInspection) -> Inspection | ModuleInspection:
    """Return a record that names standard input as the user named it."""
    if isinstance(record, Inspection):
        return replace(record, path=str(STREAM))
    return replace(record, model=str(STREAM))


def _show_opportunities(given: Given, model: Path) -> int:
    from sardonyx import opportunities

    with progress(not given.quiet) as report:
        record = opportunities(model, target=given.target or "portable", progress=report)
    return given.finish(
        record,
        document=lambda: opportunities_document(record, given.view),
        sentence=opportunities_sentence(record),
    )


def _sentence(record: Inspection | ModuleInspection) -> str:
    return inspection_sentence(record) if isinstance(record, Inspection) else module_sentence(record)


def _document(record: Inspection | ModuleInspection, view: View) -> Document:
    return inspection_document(record, view) if isinstance(record, Inspection) else module_document(record, view)


VERB = Verb(
    of=("inspect",),
    options=(
        options.MODELS, options.MODULE, options.DEPTH,
        switch("opportunities", "Show what could be fused or eliminated, and why the rest could not."),
        Option("target", "TARGET", "With --opportunities: see `optimize`.", type=str, default=None, none="portable",
            read=options.check_target, values=options.target_names),
        options.OUT_DIR, options.FORCE, *options.MANY_MODELS, *options.PRINTING,
    ),
    record="inspection",
    document=_document,
    sentence=_sentence,
    run=_run,
)  # fmt: skip
