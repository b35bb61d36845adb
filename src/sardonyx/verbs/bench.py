"""`sardonyx bench`: time ONNX files against each other, with confidence intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import announce, notes_with_flags, progress, show
from sardonyx.cli.durations import bench_seconds
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import MORE, Format, RuntimeLevel, check_readable, parse_duration
from sardonyx.errors import UsageError
from sardonyx.reporting.bench import bench_csv, bench_document, bench_sentence
from sardonyx.reporting.document import View
from sardonyx.reporting.plots.boxplot import boxplot_svg

HELP = """\b
Example:
  sardonyx bench model.onnx optimized.onnx
  sardonyx bench model.onnx optimized.onnx --sweep seq=16,128,512 --sweep batch=1,8 --svg times.svg
  sardonyx bench before.onnx after.onnx --fail-if 'latency_ratio>1.05' --format markdown

The files run in turn, in random order, round after round, until the interval of each ratio to the first file is narrow
or the time is spent. A difference within that of two copies of the first file is no difference. "12 % faster" means
12 % less time. docs/bench.md explains the method.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""


_SWEEP = re.compile(r"(?P<dim>[^\s=]+)=(?P<sizes>[1-9]\d{0,17}(?:,[1-9]\d{0,17})*)", re.ASCII)


class Clock(StrEnum):
    """Which time is measured."""

    WALL = "wall"
    CPU = "cpu"


Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...", help="ONNX files, the reference first.", callback=check_readable, show_default=False
    ),
]
Seconds = Annotated[
    str,
    typer.Option("--seconds", "--budget", metavar="N", help="Time limit for all runs together: 60, 90s, 2m."),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="DIM=N,N",
        help="Sizes to try for a dynamic dimension. Repeatable; dimensions are combined. [default: none]",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Run on these arrays, one for each input. [default: random inputs]",
        rich_help_panel=MORE,
    ),
]
ClockOption = Annotated[
    Clock,
    typer.Option("--clock", help="Measure elapsed time, or only the CPU time of the model.", rich_help_panel=MORE),
]
Isolate = Annotated[bool, typer.Option("--isolate", help="Run each file in its own process.", rich_help_panel=MORE)]
Starts = Annotated[
    int,
    typer.Option(
        "--starts",
        metavar="N",
        min=0,
        max=100,
        help="Fresh processes for each file, for load time and memory; 0: none.",
        rich_help_panel=MORE,
    ),
]
FormatOption = Annotated[Format, options.table_format("every round")]
Svg = Annotated[Path | None, options.svg("the times as a box plot")]


def bench(
    models: Models,
    seconds: Seconds = "60",
    sizes: options.Sizes = None,
    sweep: Sweep = None,
    inputs: Inputs = None,
    threads: options.TimedThreads = 1,
    custom_ops: options.CustomOps = None,
    provider: options.Provider = "cpu",
    level: options.Level = RuntimeLevel.ALL,
    clock: ClockOption = Clock.WALL,
    isolate: Isolate = False,
    starts: Starts = 3,
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
    """Run `sardonyx.bench`, print its record and check the gates."""
    options.check_output_options(format_, as_json=as_json, quiet=quiet, verbose=verbose)
    files.check_apart(svg=svg, record=record)
    gating = Gating.of("bench", fail_if, baseline, summary, beside=(svg, record, *models))
    budget, fixed, swept = parse_duration(seconds), options.parse_sizes(sizes), _parse_sweep(sweep or ())
    files.check_free(svg, record, force=force)
    points = math.prod(map(len, swept.values()))
    expected = bench_seconds(models, budget, starts, points)
    announce(f"timing {len(models)} files" if len(models) > 1 else "timing", expected, shown=not quiet)
    with progress(not quiet) as report:
        from sardonyx import bench as run_bench

        benchmark = run_bench(
            models,
            seconds=budget,
            sizes=fixed,
            sweep=swept,
            inputs=inputs,
            threads=threads,
            provider=provider,
            level=level,
            clock=clock,
            isolate=isolate,
            starts=starts,
            seed=seed,
            progress=report,
        )
    files.write_record(record, benchmark, force=force)
    if svg is not None:
        files.write_whole(svg, boxplot_svg(benchmark).encode(), force=force)
    shown = notes_with_flags(benchmark)
    show(
        benchmark.to_json,
        lambda: bench_document(shown, View(verbose)),
        as_json=as_json,
        quiet=quiet,
        form=format_,
        csv=lambda: bench_csv(shown),
    )
    return gating.outcome(benchmark, bench_sentence(benchmark))


def _parse_sweep(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each dimension to sweep; a dimension that is named twice gets the sizes of both."""
    sweep: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = _SWEEP.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"'{text}' is not a sweep", hint="write DIM=N,N,…, for example --sweep seq=16,128,512")
        sweep[match["dim"]] = sweep.get(match["dim"], ()) + tuple(map(int, match["sizes"].split(",")))
    return sweep
