"""`sardonyx profile`: show the time of ONNX files by module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import OUTPUT, Format, RuntimeLevel, check_readable
from sardonyx.reporting.document import View
from sardonyx.reporting.plots.icicle import icicle_svg
from sardonyx.reporting.profile import profile_csv, profile_document, profile_sentence
from sardonyx.reporting.viewers.perfetto import trace

HELP = """\b
Example:
  sardonyx profile model.onnx
  sardonyx profile model.onnx optimized.onnx --size sequence=256 --svg time.svg
  sardonyx profile decoder.onnx --at sequence=128,past_sequence=0 --at sequence=1,past_sequence=128
  sardonyx profile model.onnx --trace trace.json      # open it in ui.perfetto.dev
  sardonyx profile model.onnx --fail-if 'attributed<97%' --format csv > times.csv

Runs each file with the optimizations of ONNX Runtime and sums the time of its kernels by the modules of the original
network. A kernel that the runtime fused from several nodes is traced back to them. The times have no confidence
interval: `sardonyx bench` finds out whether a file is faster. docs/profile.md explains the method.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...", help="ONNX files, before and after.", callback=check_readable, show_default=False
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(
        "--runs",
        metavar="N",
        min=1,
        help="Number of runs; the median is shown. [default: as many as fit into a few seconds]",
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="DIM=N,…",
        help="Sizes of dynamic dimensions to show in a column of their own. Repeatable. [default: one column a file]",
    ),
]
FormatOption = Annotated[Format, options.table_format("every module and kernel")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Also write a trace of one run of each file, for ui.perfetto.dev. [default: none]",
        rich_help_panel=OUTPUT,
    ),
]
Svg = Annotated[Path | None, options.svg("the time by module")]


def profile(
    models: Models,
    sizes: options.Sizes = None,
    at: At = None,
    threads: options.TimedThreads = 1,
    custom_ops: options.CustomOps = None,
    provider: options.Provider = "cpu",
    level: options.Level = RuntimeLevel.ALL,
    runs: Runs = None,
    depth: options.Depth = None,
    format_: FormatOption = Format.TEXT,
    trace_file: Trace = None,
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
    """Run `sardonyx.profile`, print its record and check the gates."""
    options.check_output_options(format_, as_json=as_json, quiet=quiet, verbose=verbose)
    outputs = [path for path in (trace_file, svg, record) if path is not None]
    files.check_apart(trace=trace_file, svg=svg, record=record)
    gating = Gating.of("profile", fail_if, baseline, summary, beside=(*outputs, *models))
    dim_sizes, points = options.parse_sizes(sizes), [options.parse_point(text) for text in at or ()]
    files.check_free(*outputs, force=force)
    with progress(not quiet) as report:
        from sardonyx import profile as run_profile

        result = run_profile(
            models,
            sizes=dim_sizes or None,
            at=points,
            threads=threads,
            provider=provider,
            level=level.value,
            runs=runs,
            seed=seed,
            progress=report,
        )
    files.write_record(record, result, force=force)
    if trace_file is not None:
        files.write_whole(trace_file, trace(result), force=force)
    if svg is not None:
        title = " → ".join(model.label for model in result.models)
        files.write_whole(svg, icicle_svg(result, title).encode(), force=force)
    show(
        result.to_json,
        lambda: profile_document(result, View(depth=depth, verbose=verbose)),
        as_json=as_json,
        quiet=quiet,
        form=format_,
        csv=lambda: profile_csv(result),
    )
    return gating.outcome(result, profile_sentence(result))
