"""`sardonyx optimize`: a smaller graph, verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import complain, note, progress, show
from sardonyx.cli.durations import duration
from sardonyx.cli.gates import Gating
from sardonyx.cli.help import OUTPUT
from sardonyx.cli.options import Proof, Target, reject_both
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.reporting import gate
from sardonyx.reporting.formatting import one_line, visible
from sardonyx.reporting.options import View
from sardonyx.reporting.run import closing_sentence, render_run

if TYPE_CHECKING:
    from sardonyx.records.run import Run

SUMMARY = "Make a graph smaller and prove that it computes the same."
HELP = f"""\b
Example:
  sardonyx optimize model.onnx -o small.onnx
  sardonyx optimize model.onnx -o small.onnx --run runs/today
  sardonyx optimize model.onnx --dry-run -v
  sardonyx optimize model.onnx --tune --budget 2m --size seq=512 --threads 4
  sardonyx optimize model.onnx -o small.onnx --keep-module 'encoder.layer.*'
  sardonyx optimize model.onnx --skip fold-constants --fail-if 'nodes>120'

Rewrites the graph, verifies the result against the original on drawn inputs, and undoes any rewrite that fails.
Every node still knows the module it comes from. Where a fusion needs a newer opset, the model is raised to it if
everything in it stays the same. With --tune, rewrites that a measurement shows to cost time on this machine are undone,
and the result is never slower than the original beyond the interval; with one thread unless --threads says otherwise.

{gate.RUN.help()}

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 a --fail-if was true.
"""

Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="PASS", help="Run only this pass. Repeatable. [default: all]")
]
Skip = Annotated[
    list[str] | None, typer.Option("--skip", metavar="PASS", help="Leave out this pass. Repeatable. [default: none]")
]
FewestNodes = Annotated[
    bool, typer.Option("--fewest-nodes", help="Also run passes that make the graph smaller but measured slower.")
]
MaxOpset = Annotated[
    int | None,
    typer.Option(
        "--max-opset", metavar="N", min=1, help="Raise the opset no further than this. [default: as fusions need]"
    ),
]
KeepOpset = Annotated[bool, typer.Option("--keep-opset", help="Never raise the opset.")]
AllowGrowth = Annotated[
    bool, typer.Option("--allow-growth", help="Let the file grow by more than 1 % and 64 kB where that saves nodes.")
]
KeepModule = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-module",
        metavar="NAME",
        help="Merge nothing inside this module with what is outside: a path, tag, glob or class. Repeatable. "
        "[default: none]",
    ),
]
TargetOption = Annotated[
    Target, typer.Option("--target", help="portable: standard ONNX only; ort: also ONNX Runtime's own operators.")
]
Verify = Annotated[
    Proof, typer.Option("--verify", help="Prove after each pass, at the end, or not at all.", case_sensitive=False)
]
External = Annotated[
    bool | None,
    typer.Option(
        "--external-data/--inline",
        help="Weights in a file of their own, or inside. [default: as they were]",
        rich_help_panel=OUTPUT,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would apply, where, and why not; write nothing.")]
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="FOLDER",
        help="Also time both files, and leave all records and a page to read in a folder. [default: no folder]",
        rich_help_panel=OUTPUT,
    ),
]
Tune = Annotated[bool, typer.Option("--tune", help="Measure on this machine, and undo what does not pay on it.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="TIME", help="How long may be measured: 90s, 5m. [default: 2m for --tune, 10s for --run]"
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
    verify: Verify = Proof.END,
    verify_seconds: options.VerifySeconds = 20.0,
    runtime: options.Runtimes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
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
    """Run the public verb and show its Run."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--max-opset", max_opset is not None, "--keep-opset", keep_opset)
    reject_both("--dry-run", dry_run, "--record", record is not None)
    reject_both("--dry-run", dry_run, "--tune", tune)
    reject_both("--dry-run", dry_run, "--run", run_folder is not None)
    if (budget or sizes) and not tune and run_folder is None:
        wrong = "--budget" if budget else "--size"
        raise UsageError(f"{wrong} is for measuring", hint="add --tune, or --run FOLDER")
    seconds, asked = duration(budget or "2m"), options.parse_sizes(sizes)
    destination = output or model.parent / f"{model.stem}.optimized.onnx"
    gating = Gating.of(gate.RUN, fail_if, baseline, summary, beside=(model, destination, record))
    gating.check_provable(not dry_run and verify is not Proof.OFF, "drop --verify off and --dry-run")
    gating.check_timed(tune, "add --tune")
    _check_folder(run_folder, model, record, asked, force=force)
    if not dry_run:
        files.check_destinations(destination, record, force=force)

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
            tune=tune and TuneOptions(seconds=seconds, sizes=asked or None),
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
        if run_folder is not None and run.status == "done":
            from sardonyx.cli.run_folder import SECONDS, Conditions, fill

            spend = seconds if budget and not tune else SECONDS
            how = Conditions(spend, asked or None, threads or 1, seed)
            run = _with_complaints(run, fill(run_folder, run, conditions=how, force=force, progress=report))
    files.write_record(record, run.to_json(), force=force)
    show(
        run.to_json,
        lambda style: closing_sentence(run, style),
        lambda style: render_run(run, View(style, verbose)) + _where(run_folder),
        as_json=as_json,
        quiet=quiet,
    )
    return _outcome(run, gating, as_json=as_json)


def _check_folder(folder: Path | None, model: Path, record: Path | None, sizes: dict[str, int], *, force: bool) -> None:
    if folder is not None:
        from sardonyx.cli.run_folder import RUN, check  # what measures is loaded where something is measured

        files.check_apart(record=record, run=folder / RUN)
        check(folder, model, sizes, force=force)


def _with_complaints(run: Run, noted: Run) -> Run:
    """The run with what could not be had, which is said at once too."""
    for each in noted.notes[len(run.notes) :]:
        note(f"note: {one_line(each)}")
    return noted


def _where(folder: Path | None) -> str:
    return (
        ""
        if folder is None
        else f"all of it is in {visible(str(folder))}: open {visible(str(folder / 'report.html'))}\n"
    )


def _outcome(run: Run, gating: Gating, *, as_json: bool) -> int:
    if run.status != "done" and as_json:  # the text would have said so
        complain(VerificationFailed("the result does not compute the same as the original, so nothing was written"))
    return gating.outcome(
        run, closing_sentence(run), failed=0 if run.status == "done" else VerificationFailed.exit_code
    )
