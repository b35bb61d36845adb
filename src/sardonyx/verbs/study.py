"""`sardonyx study`: run experiments on any set of models; a later run continues where an earlier one stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sardonyx.cli import options
from sardonyx.cli.console import live_table, note, put, put_json, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import OUTPUT, parse_duration, reject_both
from sardonyx.errors import UsageError
from sardonyx.fleet.storage import Store, open_store
from sardonyx.records.study import Study
from sardonyx.reporting.document import View
from sardonyx.reporting.study import files as rendered
from sardonyx.reporting.study import study_document, study_sentence
from sardonyx.reporting.writers import parquet

HELP = """\b
Example:
  sardonyx study --zoo small -o study
  sardonyx study models/ -o study
  sardonyx study a.onnx b.onnx -o study --only attribution --only order
  sardonyx study models/ -o study --seconds 60 --thorough

Finished work is stored in the folder: repeat the command to continue a study that was stopped or killed; with other
options, only what they change is computed. Work that is not timed runs in several processes at once; timed work runs
alone at the end. The folder gets tables (CSV, JSON, Markdown), plots, findings.md with the conclusions that the data
support, and study.json. docs/study.md describes each experiment.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

Sources = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL|FOLDER]...", help="ONNX files, folders of them, or URLs.", show_default=False),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder or URL for all results.", rich_help_panel=OUTPUT)
]
Zoo = Annotated[
    str | None,
    typer.Option("--zoo", metavar="NAME", help="A built-in set of models, built from configs: small. [default: none]"),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="EXPERIMENT", help="Run only this experiment. Repeatable. [default: all]"),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="EXPERIMENT", help="Do not run this experiment. Repeatable. [default: none]"),
]
Target = Annotated[
    options.Target,
    typer.Option("--target", help="Passes to study: portable, or ort for those with ONNX Runtime's own operators too."),
]
Seconds = Annotated[
    str, typer.Option("--seconds", metavar="N", help="Time limit for the timed runs of one cell: 60, 90s, 2m.")
]
Thorough = Annotated[bool, typer.Option("--thorough", help="Use more seeds, sizes and shuffles; takes longer.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads for timed runs.")]
NoTiming = Annotated[bool, typer.Option("--no-timing", help="Leave out timed work, for machines that are shared.")]
ShowStatus = Annotated[
    str | None,
    typer.Option(
        "--status", metavar="FOLDER", help="Print how far the study in a folder is, and exit. [default: none]"
    ),
]


def study(
    sources: Sources = None,
    output: Output = "study",
    zoo: Zoo = None,
    only: Only = None,
    skip: Skip = None,
    target: Target = options.Target.PORTABLE,
    seconds: Seconds = "12",
    thorough: Thorough = False,
    threads: Threads = 1,
    no_timing: NoTiming = False,
    status: ShowStatus = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.study`, write and print its record, and check the gates."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--workers", workers is not None, "--cluster", cluster is not None)
    if status is not None:
        return _show_status(status, as_json=as_json)
    gating = Gating.of("study", fail_if, baseline, summary, beside=[Path(source) for source in sources or ()])
    budget = parse_duration(seconds)
    try:
        with live_table(not quiet) as report:
            from sardonyx import study as run_study

            result = run_study(
                sources or (),
                output,
                zoo=zoo,
                only=only,
                skip=skip,
                target=target.value,
                seconds=budget,
                thorough=thorough,
                seed=seed,
                threads=threads,
                workers=workers,
                cluster=cluster,
                timeout=None if timeout is None else parse_duration(timeout),
                memory=options.parse_memory(memory),
                timing=not no_timing,
                progress=report,
            )
    except KeyboardInterrupt:
        note(f"finished work is stored in {output}: repeat the command to continue")
        raise
    _write(result, open_store(output))
    where = f"results in {output} (open {output.rstrip('/')}/findings.md)"
    show(
        result.to_json, lambda: study_document(result, View(verbose)), as_json=as_json, quiet=quiet, after=f"{where}\n"
    )
    return gating.outcome(result, study_sentence(result))


def _show_status(folder: str, *, as_json: bool) -> int:
    """Print the status that a running or ended study wrote."""
    from sardonyx.fleet.progress import STATUS, Status

    data = open_store(folder).read(STATUS)
    try:
        status = msgspec.json.decode(data or b"", type=Status)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{folder} has no status of a study", hint="name the folder of `--output`") from error
    if as_json:
        put_json(msgspec.json.encode(status))
    else:
        put(f"{status.state}: {status.line()}\n{status.coordinator}, {status.updated}\n")
    return 0


def _write(result: Study, store: Store) -> None:
    """Write everything that is rendered from the record, and delete files that an earlier run rendered."""
    contents = rendered(result) | {"study.json": msgspec.json.format(result.to_json(), indent=2) + b"\n"}
    if parquet.is_available():
        contents |= {
            f"tables/{table.name}.parquet": parquet.write(table.columns, table.rows) for table in result.tables
        }
    for name, data in contents.items():
        store.write(name, data)
    for kind in ("tables/", "pictures/"):
        for name in store.names(kind):
            if name not in contents:
                store.remove(name)
