"""`sardonyx analyze`: count the operations, bytes moved and memory of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import notes_with_flags, progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import Format, reject_both
from sardonyx.records.analysis import Analysis
from sardonyx.reporting.analysis import analysis_csv, analysis_document, analysis_sentence
from sardonyx.reporting.document import View
from sardonyx.reporting.plots.timeline import timeline_svg
from sardonyx.verbs.export import Dynamic, InputFile, InputSpec

HELP = """\b
Example:
  sardonyx analyze torchvision:vit_b_16
  sardonyx analyze hf-config:BertConfig --dynamic auto --fail-if 'peak_mb>512'
  sardonyx analyze model.onnx optimized.onnx --size sequence=256 --svg memory.svg
  sardonyx analyze model.py:build --format csv > costs.csv

SOURCE is any source that `export` accepts, or an ONNX file; several ONNX files are shown side by side. A torch model is
shown in three forms: as it is (standard), with every attention decomposed into primitive operations (decomposed), and
with every attention as one kernel (fused). It is traced without data. docs/memory.md defines each number.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...", help="A model, or several ONNX files to show side by side.", show_default=False
    ),
]
DtypeOption = Annotated[
    options.DtypeName,
    typer.Option("--dtype", help="Floating-point type of a torch model; keep: the type it was saved in."),
]
FormatOption = Annotated[Format, options.table_format("all numbers unrounded")]
Svg = Annotated[Path | None, options.svg("memory over time")]


def analyze(
    sources: Sources,
    task: options.Task = None,
    dtype: DtypeOption = options.DtypeName.KEEP,
    input_specs: InputSpec = None,
    input_file: InputFile = None,
    dynamic: Dynamic = None,
    sizes: options.Sizes = None,
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
    """Run `sardonyx.analyze`, print its record and check the gates."""
    options.check_output_options(format_, as_json=as_json, quiet=quiet, verbose=verbose)
    reject_both("--input", bool(input_specs), "--inputs", input_file is not None)
    gating = Gating.of("analysis", fail_if, baseline, summary, beside=(svg, record, input_file, *map(Path, sources)))
    dim_sizes = options.parse_sizes(sizes)
    files.check_apart(svg=svg, record=record)
    files.check_free(svg, record, force=force)

    from sardonyx.records.input_specs import parse_dynamic

    inputs = options.parse_example(input_specs, input_file)
    request = parse_dynamic(dynamic) if dynamic else None
    with progress(not quiet) as report:
        from sardonyx import analyze as run_analyze

        analysis = run_analyze(
            sources[0],
            inputs=inputs,
            beside=sources[1:],
            task=task,
            dtype=dtype.value,
            sizes=dim_sizes or None,
            seed=seed,
            progress=report,
            dynamic=request,
        )
    files.write_record(record, analysis, force=force)
    if svg is not None:
        files.write_whole(svg, _svg(analysis).encode(), force=force)
    shown, view = notes_with_flags(analysis), View(depth=depth, verbose=verbose)
    show(
        analysis.to_json,
        lambda: analysis_document(shown, view),
        as_json=as_json,
        quiet=quiet,
        form=format_,
        csv=lambda: analysis_csv(shown),
    )
    return gating.outcome(analysis, analysis_sentence(analysis))


def _svg(analysis: Analysis) -> str:
    timelines = {form.name: form.memory.timeline for form in analysis.forms}
    return timeline_svg(timelines, " and ".join(source.label for source in analysis.sources))
