"""Run experiments on a set of models.

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

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sardonyx.cli import options
from sardonyx.cli.console import live_table, note, put, put_json
from sardonyx.cli.options import OUTPUT, Option, argument, parse_duration, parse_memory, switch
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import UsageError
from sardonyx.fleet.storage import Store, open_store
from sardonyx.records.study import Study
from sardonyx.reporting.study import files as rendered
from sardonyx.reporting.writers.tables import has_parquet, write_parquet


def _run(given: Given) -> int:
    given.reject("workers", "cluster")
    if given.status is not None:
        return _show_status(given.status, as_json=given.as_json)
    given.check()
    try:
        with live_table(not given.quiet) as report:
            result = given.call(given.sources or (), given.output, timing=not given.no_timing, progress=report)
    except KeyboardInterrupt:
        note(f"finished work is stored in {given.output}: repeat the command to continue")
        raise
    _write(result, open_store(given.output))
    where = f"results in {given.output} (open {given.output.rstrip('/')}/findings.md)\n"
    return given.finish(result, after=where)


def _show_status(folder: str, *, as_json: bool) -> int:
    """Print the status that a running or ended study wrote."""
    from sardonyx.fleet.engines import STATUS, Status

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
    if has_parquet():
        contents |= {
            f"tables/{table.name}.parquet": write_parquet(table.columns, table.rows) for table in result.tables
        }
    for name, data in contents.items():
        store.write(name, data)
    for kind in ("tables/", "pictures/"):
        for name in store.names(kind):
            if name not in contents:
                store.remove(name)


VERB = Verb(
    of=("study",),
    options=(
        argument("sources", "[MODEL|FOLDER]...", "ONNX files, folders of them, or URLs.", list[str], default=None),
        Option("output", "FOLDER", "Folder or URL for all results.", ("--output", "-o"), OUTPUT, str, "study"),
        Option("zoo", "NAME", "A built-in set of models, built from configs: small.", none="none"),
        Option("only", "EXPERIMENT", "Run only this experiment. Repeatable.", none="all"),
        Option("skip", "EXPERIMENT", "Do not run this experiment. Repeatable.", none="none"),
        Option("target", "TARGET", type=str,
            help="Passes to study: portable, or ort for those with ONNX Runtime's own operators too."),
        options.seconds("12", "Time limit for the measurements of one cell: 60, 90s, 2m."),
        Option("thorough", None, "Use more seeds, sizes and shuffles; takes longer."),
        Option("threads", "N", "Threads for timed runs.", least=1),
        switch("no_timing", "Leave out timed work, for machines that are shared."),
        Option("status", "FOLDER", "Print how far the study in a folder is, and exit.", type=str, default=None,
            none="none"),
        options.WORKERS, options.CLUSTER,
        replace(options.TIMEOUT, read=parse_duration),
        replace(options.MEMORY, read=parse_memory),
        options.SEED, *options.PRINTING,
    ),
    record="study",
    document=later("sardonyx.reporting.study:study_document"),
    sentence=later("sardonyx.reporting.study:study_sentence"),
    run=_run,
)  # fmt: skip
