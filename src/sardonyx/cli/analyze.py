"""`sardonyx analyze`: what a model costs in arithmetic, traffic and memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import progress, put, show
from sardonyx.cli.export import Dynamic, InputFile, InputSpec
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import Format, reject_both
from sardonyx.records.analysis import Analysis
from sardonyx.reporting import gate
from sardonyx.reporting.analysis import analysis_sentence, render_analysis
from sardonyx.reporting.analysis_export import analysis_csv, analysis_markdown
from sardonyx.reporting.options import View
from sardonyx.reporting.plots.timeline import timeline_svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


SUMMARY = "Say what a model costs: operations, flops, bytes moved, peak memory."
HELP = f"""\b
Example:
  sardonyx analyze torchvision:vit_b_16
  sardonyx analyze hf-config:BertConfig --dynamic auto --fail-if 'peak_mb>512'
  sardonyx analyze model.onnx optimized.onnx --size sequence=256 --svg memory.svg
  sardonyx analyze model.py:build --format csv > costs.csv

SOURCE is what `export` takes, or an ONNX file; several ONNX files stand side by side. A torch model is shown as it is
(standard), with every attention spelled out (decomposed) and with every attention as one kernel (fused): operations,
flops, bytes moved with and without fusing, and the most memory it needs at once with what is alive then. It is run
without data, so weights do not matter. -v shows everything for each form. MB are 10^6 bytes; docs/memory.md defines
each number.

{gate.ANALYSIS.help()} They ask the standard form, or the last file; decomposed.NAME and fused.NAME ask the others.
peak_mb counts weights, inputs and activations, activation_mb activations alone.

Exit: 0 done, 1 failed, 2 usage, 4 a --fail-if was true.
"""


Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE...", help="A model, or ONNX files side by side.", show_default=False)
]
DtypeOption = Annotated[
    options.DtypeName,
    typer.Option("--dtype", help="Floating-point type of a torch model; keep is the one it is saved in."),
]
FormatOption = Annotated[Format, options.form("every number in full")]
Svg = Annotated[Path | None, options.drawing("memory over time")]
AsInNotes = Annotated[
    bool, typer.Option("--as-in-notes", help="Add the estimate of the founding notes, which is no saving of memory.")
]


def analyze(
    sources: Sources,
    task: options.Task = None,
    dtype: DtypeOption = options.DtypeName.KEEP,
    input_specs: InputSpec = None,
    input_file: InputFile = None,
    dynamic: Dynamic = None,
    sizes: options.Sizes = None,
    as_in_notes: AsInNotes = False,
    depth: options.Depth = None,
    format_: FormatOption = Format.TEXT,
    svg: Svg = None,
    record: options.Record = None,
    force: options.Force = False,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb, show its Analysis and hold it to the gates."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--json", as_json, "--format", format_ is not Format.TEXT)
    reject_both("--quiet", quiet, "--format", format_ is not Format.TEXT)
    reject_both("--input", bool(input_specs), "--inputs", input_file is not None)
    gating = Gating.of(gate.ANALYSIS, fail_if, baseline, summary, beside=(svg, record, input_file, *map(Path, sources)))
    asked = options.parse_sizes(sizes)
    files.check_apart(svg=svg, record=record)
    files.check_free(svg, record, force=force)
    wishes = _wishes(input_specs or (), input_file, dynamic or ())
    with progress(not quiet) as report:
        if report is not None:
            report("loading", None)
        from sardonyx import analyze as run_analyze

        found = run_analyze(
            sources[0],
            beside=sources[1:],
            task=task,
            dtype=dtype.value,
            sizes=asked or None,
            as_in_notes=as_in_notes,
            seed=seed,
            progress=report,
            **wishes,
        )
    files.write_record(record, found.to_json(), force=force)
    if svg is not None:
        files.write_whole(svg, _drawn(found).encode(), force=force)
    _show(found, format_, View(depth=depth, verbose=verbose), as_json=as_json, quiet=quiet)
    return gating.outcome(found, analysis_sentence(found))


def _wishes(specs: Sequence[str], file: Path | None, dynamic: Sequence[str]) -> Mapping[str, Any]:
    """Inputs and open dims, as far as something was said of them."""
    from sardonyx.records.input_specs import parse_dynamic, parse_inputs, read_arrays

    inputs = read_arrays(file) if file is not None else parse_inputs(specs)
    return {"inputs": inputs or None, "dynamic": parse_dynamic(dynamic) if dynamic else None}


def _drawn(found: Analysis) -> str:
    timelines = {form.name: form.memory.timeline for form in found.forms}
    return timeline_svg(timelines, " and ".join(source.label for source in found.sources))


def _show(found: Analysis, form: Format, view: View, *, as_json: bool, quiet: bool) -> None:
    if form is not Format.TEXT:
        put(analysis_markdown(found) if form is Format.MARKDOWN else analysis_csv(found))
        return
    show(
        found.to_json,
        lambda style: style.strong(analysis_sentence(found)),
        lambda style: render_analysis(found, View(style, view.verbose, view.depth)),
        as_json=as_json,
        quiet=quiet,
    )
