"""`sardonyx optimize`: write a smaller graph that is verified to compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import Progress, complain, note, progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import MORE, OUTPUT, Target, VerifyWhen, parse_duration, reject_both
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.reporting.document import View
from sardonyx.reporting.formatting import one_line, visible
from sardonyx.reporting.run import run_document, run_sentence

if TYPE_CHECKING:
    from sardonyx.cli.run_folder import Conditions
    from sardonyx.records.run import Run

HELP = """\b
Example:
  sardonyx optimize model.onnx -o small.onnx
  sardonyx optimize model.onnx -o small.onnx --run runs/today
  sardonyx optimize model.onnx --dry-run -v
  sardonyx optimize model.onnx --tune --budget 2m --size seq=512 --threads 4
  sardonyx optimize model.onnx --skip fold-constants --fail-if 'nodes>120'

Rewrites the graph, verifies the result against the original on random inputs, and undoes any rewrite that fails. Every
node keeps its module. docs/optimize.md describes what is rewritten.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""

Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="PASS", help="Run only this pass. Repeatable. [default: all]")
]
Skip = Annotated[
    list[str] | None, typer.Option("--skip", metavar="PASS", help="Do not run this pass. Repeatable. [default: none]")
]
FewestNodes = Annotated[
    bool,
    typer.Option(
        "--fewest-nodes", help="Also run passes that save nodes but were measured to be slower.", rich_help_panel=MORE
    ),
]
MaxOpset = Annotated[
    int | None,
    typer.Option(
        "--max-opset",
        metavar="N",
        min=1,
        help="Do not raise the opset above this. [default: as fusions need]",
        rich_help_panel=MORE,
    ),
]
KeepOpset = Annotated[bool, typer.Option("--keep-opset", help="Never raise the opset.", rich_help_panel=MORE)]
AllowGrowth = Annotated[
    bool,
    typer.Option(
        "--allow-growth",
        help="Allow rewrites that save nodes but make the file more than 1 % and 64 kB larger.",
        rich_help_panel=MORE,
    ),
]
KeepModule = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-module",
        metavar="NAME",
        help="Do not fuse this module with others. A path, tag, glob or class; repeatable. [default: none]",
    ),
]
TargetOption = Annotated[Target, typer.Option("--target", help="Standard operators, or also those of ONNX Runtime.")]
Verify = Annotated[
    VerifyWhen,
    typer.Option("--verify", help="When to verify: after each pass, at the end, or never.", case_sensitive=False),
]
External = Annotated[
    bool | None,
    typer.Option(
        "--external-data/--inline",
        help="Store weights in a separate file, or in the model. [default: as in the source]",
        rich_help_panel=MORE,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be rewritten, and what not and why.")]
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="FOLDER",
        help="Also time both files, and write a report and all records here. [default: none]",
        rich_help_panel=OUTPUT,
    ),
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune", help="Time rewrites here and undo those that are slower. Uses one thread unless --threads is given."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Time limit for measurements: 90s, 5m. [default: 2m for --tune, 10s for --run]",
        rich_help_panel=MORE,
    ),
]


def optimize(
    model: options.Model,
    output: options.Output = None,
    force: options.Force = False,
    target: TargetOption = Target.PORTABLE,
    only: Only = None,
    skip: Skip = None,
    fewest_nodes: FewestNodes = False,
    max_opset: MaxOpset = None,
    keep_opset: KeepOpset = False,
    allow_growth: AllowGrowth = False,
    keep_module: KeepModule = None,
    verify: Verify = VerifyWhen.END,
    verify_seconds: options.VerifySeconds = 20.0,
    runtime: options.Runtimes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    custom_ops: options.CustomOps = None,
    external: External = None,
    dry_run: DryRun = False,
    tune: Tune = False,
    budget: Budget = None,
    sizes: options.Sizes = None,
    run_folder: RunFolder = None,
    record: options.Record = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.optimize` and print its record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--max-opset", max_opset is not None, "--keep-opset", keep_opset)
    reject_both("--dry-run", dry_run, "--record", record is not None)
    reject_both("--dry-run", dry_run, "--tune", tune)
    reject_both("--dry-run", dry_run, "--run", run_folder is not None)
    if (budget or sizes) and not tune and run_folder is None:
        option = "--budget" if budget else "--size"
        raise UsageError(f"{option} is for measurements", hint="add --tune, or --run FOLDER")
    seconds, dim_sizes = parse_duration(budget or "2m"), options.parse_sizes(sizes)
    destination = output or model.parent / f"{model.stem}.optimized.onnx"
    gating = Gating.of("run", fail_if, baseline, summary, beside=(model, destination, record))
    gating.check_verified(not dry_run and verify is not VerifyWhen.OFF, "drop --verify off and --dry-run")
    gating.check_timed(tune, "add --tune")
    _check_folder(run_folder, model, record, dim_sizes, force=force)
    if not dry_run:
        files.check_destinations(destination, record, force=force)
    if verify is not VerifyWhen.OFF and not dry_run:
        options.start_verifier()

    from sardonyx import OptimizeOptions, TuneOptions
    from sardonyx import optimize as run_optimize

    with progress(not quiet) as report:
        run = run_optimize(
            model,
            None if dry_run else destination,
            target=target.value,
            verify=verify.value,
            only=only or None,
            skip=skip or None,
            inputs=inputs,
            seed=seed,
            threads=threads,
            force=force,
            dry_run=dry_run,
            tune=tune and TuneOptions(seconds=seconds, sizes=dim_sizes or None),
            options=OptimizeOptions(
                fewest_nodes=fewest_nodes,
                max_opset=max_opset,
                keep_opset=keep_opset,
                allow_growth=allow_growth,
                keep_modules=tuple(keep_module or ()),
                verify_seconds=verify_seconds,
                runtimes=tuple(runtime or (options.RuntimeName.ORT,)),
                external=external,
                hashes=True if record is not None or run_folder is not None or as_json else None,
            ),
            progress=report,
        )
        run = with_command(run)
        if run_folder is not None and run.status == "done":
            from sardonyx.cli.run_folder import SECONDS, Conditions

            limit = seconds if budget and not tune else SECONDS
            conditions = Conditions(limit, dim_sizes or None, threads or 1, seed)
            run = _fill_folder(run_folder, run, conditions, report, force=force)
    files.write_record(record, run.to_json(), force=force)
    show(run.to_json, lambda: run_document(run, View(verbose)), after=_where(run_folder), as_json=as_json, quiet=quiet)
    return _outcome(run, gating, as_json=as_json)


def _check_folder(folder: Path | None, model: Path, record: Path | None, sizes: dict[str, int], *, force: bool) -> None:
    if folder is not None:
        from sardonyx.cli.run_folder import RUN, check  # loads what measures, so only when needed

        files.check_apart(record=record, run=folder / RUN)
        check(folder, model, sizes, force=force)


def _fill_folder(folder: Path, run: Run, conditions: Conditions, report: Progress | None, *, force: bool) -> Run:
    """Write the run, measurements of its files and a report to a folder, and print why a measurement failed."""
    from sardonyx.cli.run_folder import fill

    filled = fill(folder, run, conditions=conditions, force=force, progress=report)
    for text in filled.notes[len(run.notes) :]:
        note(f"note: {one_line(text)}")
    return filled


def _where(folder: Path | None) -> str:
    if folder is None:
        return ""
    return f"results in {visible(str(folder))} (open {visible(str(folder / 'report.html'))})\n"


def _outcome(run: Run, gating: Gating, *, as_json: bool) -> int:
    if run.status != "done" and as_json:  # the text output says so itself
        complain(VerificationFailed("the result does not compute the same as the original, so nothing was written"))
    return gating.outcome(run, run_sentence(run), failed=0 if run.status == "done" else VerificationFailed.exit_code)
