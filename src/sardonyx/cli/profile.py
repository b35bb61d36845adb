"""`sardonyx profile`: where files spend their time, by the modules of the network they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import progress, put, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.help import OUTPUT
from sardonyx.cli.options import Format, RuntimeLevel, reject_both
from sardonyx.records.profile import Profile
from sardonyx.reporting import gate
from sardonyx.reporting.options import View
from sardonyx.reporting.plots.icicle import icicle_svg
from sardonyx.reporting.profile import profile_sentence, render_profile
from sardonyx.reporting.profile_export import profile_csv, profile_markdown
from sardonyx.reporting.viewers.perfetto import trace

SUMMARY = "Show where ONNX files spend their time, module by module."
HELP = f"""\b
Example:
  sardonyx profile model.onnx
  sardonyx profile model.onnx optimized.onnx --size sequence=256 --svg time.svg
  sardonyx profile decoder.onnx --at sequence=128,past_sequence=0 --at sequence=1,past_sequence=128
  sardonyx profile model.onnx --trace trace.json      # open it in ui.perfetto.dev
  sardonyx profile model.onnx --fail-if 'attributed<97%' --format csv > times.csv

Runs each file as a user would, with the runtime's own optimizations on, and sums the time of its kernels by the modules
of the original network. A kernel that the runtime made of several nodes is traced back to them; what belongs to no
module is named. Equal layers are one line (×12) with the sums of all; -v and --depth show more. Several files stand
side by side. Times have no interval here: `sardonyx bench` says whether a file is faster. docs/profile.md says more.

{gate.PROFILE.help()}

Exit: 0 done, 1 failed, 2 usage, 4 a --fail-if was true.
"""

Models = Annotated[
    list[Path], typer.Argument(metavar="MODEL...", help="ONNX files, before and after.", show_default=False)
]
Runs = Annotated[
    int | None,
    typer.Option(
        "--runs", metavar="N", min=1, help="Runs, of which the median is told. [default: as a few seconds allow]"
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="DIM=N,…",
        help="Sizes of open dims that get a column of their own. Repeatable. [default: one column a file]",
    ),
]
FormatOption = Annotated[Format, options.form("every module and kernel")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Also write one run of each file, for ui.perfetto.dev. [default: not written]",
        rich_help_panel=OUTPUT,
    ),
]
Svg = Annotated[Path | None, options.drawing("the modules by time")]


def profile(
    models: Models,
    sizes: options.Sizes = None,
    at: At = None,
    threads: options.TimedThreads = 1,
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
    """Run the public verb, show its Profile and hold it to the gates."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--json", as_json, "--format", format_ is not Format.TEXT)
    reject_both("--quiet", quiet, "--format", format_ is not Format.TEXT)
    written = [path for path in (trace_file, svg, record) if path is not None]
    files.check_apart(trace=trace_file, svg=svg, record=record)
    gating = Gating.of(gate.PROFILE, fail_if, baseline, summary, beside=(*written, *models))
    asked, points = options.parse_sizes(sizes), [options.parse_point(text) for text in at or ()]
    files.check_free(*written, force=force)
    with progress(not quiet) as report:
        if report is not None:
            report("loading", None)
        from sardonyx import profile as run_profile

        found = run_profile(
            models,
            sizes=asked or None,
            at=points,
            threads=threads,
            provider=provider,
            level=level.value,
            runs=runs,
            seed=seed,
            progress=report,
        )
    files.write_record(record, found.to_json(), force=force)
    if trace_file is not None:
        files.write_whole(trace_file, trace(found), force=force)
    if svg is not None:
        title = " → ".join(model.label for model in found.models)
        files.write_whole(svg, icicle_svg(found, title).encode(), force=force)
    _show(found, format_, View(depth=depth, verbose=verbose), as_json=as_json, quiet=quiet)
    return gating.outcome(found, profile_sentence(found))


def _show(found: Profile, form: Format, view: View, *, as_json: bool, quiet: bool) -> None:
    if form is not Format.TEXT:
        put(profile_markdown(found, view) if form is Format.MARKDOWN else profile_csv(found))
        return
    show(
        found.to_json,
        lambda style: style.strong(profile_sentence(found)),
        lambda style: render_profile(found, View(style, view.verbose, view.depth)),
        as_json=as_json,
        quiet=quiet,
    )
