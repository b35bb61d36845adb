"""Make a graph smaller and verify that it computes the same.

Example:
  sardonyx optimize model.onnx small.onnx
  sardonyx optimize model.onnx -o small.onnx --run runs/today
  sardonyx optimize model.onnx --skip fold-constants --fail-if 'nodes>120'

Rewrites the graph, verifies it on random inputs, and undoes any rewrite that fails. Every node keeps its module.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sardonyx.cli import files, options
from sardonyx.cli.console import announce, note, progress
from sardonyx.cli.files import STREAM, on_disk
from sardonyx.cli.options import MORE, OUTPUT, Option, file, parse_duration, reject_both
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.common.atomic_write import explained
from sardonyx.errors import UsageError
from sardonyx.reporting.formatting import one_line

_WRONG = "the result does not compute the same as the original, so nothing was written"


def _run(given: Given) -> int:
    models, folder, dry_run = given.models, given.run_folder, given.dry_run
    given.reject("max_opset", "keep_opset")
    given.reject("dry_run", "record", "tune", "run_folder", "certificate", "reproducer")
    reject_both("--verify off", given.verify == "off", "--reproducer", given.reproducer is not None)
    for name in ("seconds", "sizes"):
        if given.is_typed(name) and not given.tune and folder is None:
            raise UsageError(f"{given.flag(name)} is for measurements", hint="add --tune, or --run FOLDER")
    planned = files.plan(models, given.output, given.out_dir, ".optimized.onnx", writes=not dry_run)
    if planned is None:
        one = ("record", "run_folder", "certificate", "reproducer", "baseline")
        files.reject({given.flag(name): getattr(given, name) for name in one})
    beside = () if planned is None else (planned.source, planned.destination)
    gating = given.check(beside=beside, many=planned is None, outputs=False)
    gating.require("verification", not dry_run and given.verify != "off", "drop --verify off and --dry-run")
    gating.require("measurement", given.tune, "add --tune")
    if planned is None:
        from sardonyx.fleet.sources import find_sources

        return given.run_many(find_sources(models, exclude=given.out_dir), writes=not dry_run)
    certificate = _check_files(given, planned)
    if given.verify != "off" and not dry_run:
        options.start_verifier()
    return _optimize(given, planned, certificate)


def _check_files(given: Given, planned: files.Planned) -> Path | None:
    """Check before any work what is written where, and return where the certificate is written, if anywhere."""
    source, destination, folder, force = planned.source, planned.destination, given.run_folder, given.force
    if destination == STREAM:
        reject_both("--output -", True, "--json", given.as_json)
        reject_both("--output -", True, "--external-data", given.external is True)
    reject_both("--freeze-inputs", given.freeze_inputs, "--certificate", given.certificate is not None)
    certificate: Path | None = given.certificate
    if folder is not None:
        if STREAM in (source, destination):
            raise UsageError("--run needs files that it can time", hint="name both models instead of -")
        from sardonyx.verbs.optimize import run_folder  # loads what measures, so only when needed

        files.check_apart(record=given.record, run=folder / run_folder.RUN)
        run_folder.check(folder, source, given.sizes or {}, force=force)
        if certificate is None and not given.freeze_inputs:  # it is for a result with the inputs of the source
            with explained(str(folder)):
                folder.mkdir(parents=True, exist_ok=True)
            certificate = folder / run_folder.CERTIFICATE
    files.check_apart(certificate=certificate, record=given.record, output=destination)
    files.check_free(certificate, force=force)
    if folder is not None:  # the result is about as large as the source
        from sardonyx.verbs.bench.command import run_seconds

        seconds = run_seconds((source, source), _seconds(given))
        announce("timing both models for --run", seconds, shown=not given.quiet)
    if not given.dry_run:
        files.make_folder(given.out_dir)
        if destination != STREAM:
            files.check_destinations(destination, given.record, force=force)
    return certificate


def _seconds(given: Given) -> float:
    """Return the time limit of the timing for --run."""
    from sardonyx.verbs.optimize.run_folder import SECONDS

    return (given.seconds if not given.tune else None) or SECONDS


def _optimize(given: Given, planned: files.Planned, certificate: Path | None) -> int:
    from sardonyx import TuneOptions

    dry_run, folder, sizes = given.dry_run, given.run_folder, given.sizes
    to_stream = planned.destination == STREAM
    hashed = given.record is not None or folder is not None or given.as_json  # the hashes are only in the record
    settings = given.settings(
        keep_modules=tuple(given.keep_modules or ()),
        runtimes=tuple(given.runtime or ("ort",)),
        external=False if to_stream else given.external,
        reproducer=None if given.reproducer is None else str(given.reproducer),
        hashes=hashed,
    )
    tune: Any = given.tune and TuneOptions(seconds=given.seconds or parse_duration("2m"), sizes=sizes)
    with on_disk(planned.source, None if dry_run else planned.destination) as (source, result):
        with progress(not given.quiet) as report:
            run = given.call(source, result, certificate=certificate, tune=tune, options=settings, progress=report)
            if folder is not None and run.status == "done":
                from sardonyx.verbs.optimize.run_folder import fill

                how = {"seconds": _seconds(given), "sizes": sizes, "threads": given.threads or 1, "seed": given.seed}
                filled = fill(folder, run, conditions=how, force=given.force, progress=report)
                for text in filled.notes[len(run.notes) :]:  # why a measurement failed
                    note(f"note: {one_line(text)}")
                run = filled
        if planned.source == STREAM:  # temporary files are named as the user named them
            run = replace(run, source=replace(run.source, path=str(STREAM)))
        if to_stream and run.result.path is not None:
            run = replace(run, result=replace(run.result, path=str(STREAM)))
        return given.finish(run, differs="" if run.status == "done" else _WRONG, after=files.results_line(folder))


VERB = Verb(
    of=("optimize", "OptimizeOptions"),
    options=(
        options.MODELS,
        options.output("MODEL.optimized.onnx beside it"),
        options.OUT_DIR, options.FORCE,
        Option("target", "TARGET", "Its operators: portable, ort, or those of a device: `placement`.",
            read=options.check_target, values=options.target_names),
        Option("only", "PASS", "Run only this pass. Repeatable.", none="all"),
        Option("skip", "PASS", "Do not run this pass. Repeatable.", none="none"),
        Option("fewest_nodes", None, "Also run passes that save nodes but were measured to be slower.", group=MORE),
        Option("max_opset", "N", "Do not raise the opset above this.", none="as fusions need", group=MORE, least=1),
        Option("keep_opset", group=MORE),
        Option("allow_growth", help="Allow rewrites that save nodes but make the file more than 1 % and 64 kB larger.",
            group=MORE),
        Option("freeze_inputs", None, "Make initializers that are also inputs constants, and drop these inputs."),
        replace(options.KEEP_MODULES,
            help="Do not fuse this module with others. A path, tag, glob or class; repeatable."),
        Option("verify", None, "When to verify the result.", any_case=True),
        options.VERIFY_SECONDS, options.RUNTIME, options.INPUTS, options.SEED, options.THREADS, options.CUSTOM_OPS,
        replace(options.EXTERNAL, none="as in the source"),
        Option("dry_run", None, "Show what would be rewritten, and what not and why."),
        Option("tune", None,
            "Time rewrites here and undo those that are slower. Uses one thread unless --threads is given.", type=bool),
        replace(options.seconds(None, none="2m for --tune, 6s for --run"), group=MORE),
        options.SIZES,
        file("run_folder", "Also write a report here, with times and records.", "--run", metavar="FOLDER",
            group=OUTPUT, new=True),
        file("certificate", "Write all rewrites here, for sardonyx-check.",
            none="certificate.json.gz in the folder of --run", group=MORE, new=True),
        file("reproducer", "Write each wrong rewrite here, as two small models with inputs on which they differ.",
            metavar="FOLDER", group=MORE, new=True),
        *options.MANY_MODELS, options.RECORD, *options.PRINTING,
    ),
    record="run",
    translated=True,
    document=later("sardonyx.reporting.run:run_document"),
    sentence=later("sardonyx.reporting.run:run_sentence"),
    run=_run,
)  # fmt: skip
