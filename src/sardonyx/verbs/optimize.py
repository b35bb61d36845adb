"""`sardonyx optimize`: write a smaller graph that is verified to compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from sardonyx.atomic_write import explained
from sardonyx.cli import files, options, single
from sardonyx.cli.console import Progress, announce, complain, note, progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import MORE, OUTPUT, Target, VerifyWhen, parse_duration, reject_both
from sardonyx.cli.streams import STREAM, on_disk
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.reporting.document import View
from sardonyx.reporting.formatting import one_line
from sardonyx.reporting.run import run_document, run_sentence

if TYPE_CHECKING:
    from sardonyx.cli.run_folder import Conditions
    from sardonyx.records.run import Run

HELP = """\b
Example:
  sardonyx optimize model.onnx small.onnx
  sardonyx optimize models/ --out-dir small
  sardonyx optimize model.onnx -o small.onnx --run runs/today
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
    typer.Option("--verify", help="When to verify the result.", case_sensitive=False),
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
        help="Also write a report here, with times and records. [default: none]",
        rich_help_panel=OUTPUT,
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="Write all rewrites here, for sardonyx-check. [default: certificate.json.gz in the folder of --run]",
        rich_help_panel=MORE,
    ),
]
Reproducer = Annotated[
    Path | None,
    typer.Option(
        "--reproducer",
        metavar="FOLDER",
        help="Write each wrong rewrite here, as two small models with inputs on which they differ. [default: none]",
        rich_help_panel=MORE,
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
        help="Time limit for measurements: 90s, 5m. [default: 2m for --tune, 6s for --run]",
        rich_help_panel=MORE,
    ),
]


def optimize(
    context: typer.Context,
    models: options.Models,
    output: options.Output = None,
    out_dir: options.OutDir = None,
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
    certificate: Certificate = None,
    reproducer: Reproducer = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    keep_going: options.KeepGoing = True,
    allow_code: options.AllowCode = False,
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
    reject_both("--dry-run", dry_run, "--certificate", certificate is not None)
    reject_both("--dry-run", dry_run, "--reproducer", reproducer is not None)
    reject_both("--verify off", verify is VerifyWhen.OFF, "--reproducer", reproducer is not None)
    if (budget or sizes) and not tune and run_folder is None:
        option = "--budget" if budget else "--size"
        raise UsageError(f"{option} is for measurements", hint="add --tune, or --run FOLDER")
    seconds, dim_sizes = parse_duration(budget or "2m"), options.parse_sizes(sizes)
    planned = single.plan(models, output, out_dir, ".optimized.onnx", writes=not dry_run)
    if planned is None:
        one = {"--record": record, "--run": run_folder, "--certificate": certificate, "--reproducer": reproducer}
        single.reject({**one, "--baseline": baseline})
    source, destination = (None, None) if planned is None else (planned.source, planned.destination)
    gating = Gating.of("run", fail_if, baseline, summary, beside=(source, destination, record), many=planned is None)
    gating.check_verified(not dry_run and verify is not VerifyWhen.OFF, "drop --verify off and --dry-run")
    gating.check_timed(tune, "add --tune")
    if source is None or destination is None:
        from sardonyx.cli.many import Shown, run_many
        from sardonyx.fleet.sources import find_sources

        shown = Shown(lambda run, _: run_sentence(run), lambda run, _: run_document(run, View(verbose=True)))
        return run_many(context, find_sources(models, exclude=out_dir), gating, shown, writes=not dry_run)
    _check_streams(source, destination, external, run_folder, as_json=as_json)
    _check_folder(run_folder, source, record, dim_sizes, force=force)
    certificate = _certificate(certificate, run_folder, record, destination, force=force)
    limit = seconds if budget and not tune else None  # of the timing for --run; None: the default
    _announce_run(run_folder, source, limit, shown=not quiet)
    if not dry_run:
        single.make_folder(out_dir)
        if destination != STREAM:
            files.check_destinations(destination, record, force=force)
    if verify is not VerifyWhen.OFF and not dry_run:
        options.start_verifier()

    from sardonyx import OptimizeOptions, TuneOptions
    from sardonyx import optimize as run_optimize

    def run_one(given: Path, result: Path, report: Progress | None) -> Run:
        run = run_optimize(
            given,
            None if dry_run else result,
            target=target.value,
            verify=verify.value,
            only=only or None,
            skip=skip or None,
            inputs=inputs,
            seed=seed,
            threads=threads,
            force=force,
            dry_run=dry_run,
            certificate=certificate,
            tune=tune and TuneOptions(seconds=seconds, sizes=dim_sizes or None),
            options=OptimizeOptions(
                fewest_nodes=fewest_nodes,
                max_opset=max_opset,
                keep_opset=keep_opset,
                allow_growth=allow_growth,
                keep_modules=tuple(keep_module or ()),
                verify_seconds=verify_seconds,
                runtimes=tuple(runtime or (options.RuntimeName.ORT,)),
                reproducer=None if reproducer is None else str(reproducer),
                external=False if destination == STREAM else external,
                hashes=True if record is not None or run_folder is not None or as_json else None,
            ),
            progress=report,
        )
        return with_command(run)

    with on_disk(source, None if dry_run else destination) as (given, result):
        with progress(not quiet) as report:
            run = run_one(given, result or destination, report)
            if run_folder is not None and run.status == "done":
                from sardonyx.cli.run_folder import SECONDS, Conditions

                conditions = Conditions(limit or SECONDS, dim_sizes or None, threads or 1, seed)
                run = _fill_folder(run_folder, run, conditions, report, force=force)
        run = _with_streams(run, source, destination)
        files.write_record(record, run, force=force)
        show(
            run.to_json,
            lambda: run_document(run, View(verbose)),
            after=files.results_line(run_folder),
            as_json=as_json,
            quiet=quiet,
        )
        return _outcome(run, gating, as_json=as_json)


def _check_streams(
    source: Path, destination: Path, external: bool | None, folder: Path | None, *, as_json: bool
) -> None:
    """Raise an error if standard input or output cannot be used with the other options."""
    if destination == STREAM:
        reject_both("--output -", True, "--json", as_json)
        reject_both("--output -", True, "--external-data", external is True)
    if STREAM in (source, destination) and folder is not None:
        raise UsageError("--run needs files that it can time", hint="name both models instead of -")


def _with_streams(run: Run, source: Path, destination: Path) -> Run:
    """Return a run in which temporary files are named as the user named them."""
    if source == STREAM:
        run = replace(run, source=replace(run.source, path=str(STREAM)))
    if destination == STREAM and run.result.path is not None:
        run = replace(run, result=replace(run.result, path=str(STREAM)))
    return run


def _check_folder(folder: Path | None, model: Path, record: Path | None, sizes: dict[str, int], *, force: bool) -> None:
    if folder is not None:
        from sardonyx.cli.run_folder import RUN, check  # loads what measures, so only when needed

        files.check_apart(record=record, run=folder / RUN)
        check(folder, model, sizes, force=force)


def _certificate(
    given: Path | None, folder: Path | None, record: Path | None, output: Path, *, force: bool
) -> Path | None:
    """Return where the certificate is written, if anywhere; the folder of --run is created for it."""
    if given is None and folder is not None:
        from sardonyx.cli.run_folder import CERTIFICATE

        with explained(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
        given = folder / CERTIFICATE
    files.check_apart(certificate=given, record=record, output=output)
    files.check_free(given, force=force)
    return given


def _announce_run(folder: Path | None, source: Path, limit: float | None, *, shown: bool) -> None:
    """Print how long the measurements of --run take; the result is about as large as the source."""
    if folder is not None:
        from sardonyx.cli.durations import run_seconds
        from sardonyx.cli.run_folder import SECONDS

        announce("timing both models for --run", run_seconds((source, source), limit or SECONDS), shown=shown)


def _fill_folder(folder: Path, run: Run, conditions: Conditions, report: Progress | None, *, force: bool) -> Run:
    """Write the run, measurements of its files and a report to a folder, and print why a measurement failed."""
    from sardonyx.cli.run_folder import fill

    filled = fill(folder, run, conditions=conditions, force=force, progress=report)
    for text in filled.notes[len(run.notes) :]:
        note(f"note: {one_line(text)}")
    return filled


def _outcome(run: Run, gating: Gating, *, as_json: bool) -> int:
    if run.status != "done" and as_json:  # the text output says so itself
        complain(VerificationFailed("the result does not compute the same as the original, so nothing was written"))
    return gating.outcome(run, run_sentence(run), failed=0 if run.status == "done" else VerificationFailed.exit_code)
