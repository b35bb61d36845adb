"""`sardonyx study`: run experiments on any set of models; a later run continues where an earlier one stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import note, progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import OUTPUT, parse_duration, reject_both
from sardonyx.records.study import Study
from sardonyx.reporting.document import View
from sardonyx.reporting.study import files as rendered
from sardonyx.reporting.study import study_document, study_sentence

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
    list[Path] | None,
    typer.Argument(metavar="[MODEL|FOLDER]...", help="ONNX files, or folders of them.", show_default=False),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for all results.", rich_help_panel=OUTPUT)
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
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes for work that is not timed. [default: all cores]"),
]


def study(
    sources: Sources = None,
    output: Output = Path("study"),
    zoo: Zoo = None,
    only: Only = None,
    skip: Skip = None,
    target: Target = options.Target.PORTABLE,
    seconds: Seconds = "12",
    thorough: Thorough = False,
    threads: Threads = 1,
    jobs: Jobs = None,
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
    gating = Gating.of("study", fail_if, baseline, summary, beside=sources or ())
    budget = parse_duration(seconds)
    try:
        with progress(not quiet) as report:
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
                jobs=jobs,
                progress=report,
            )
    except KeyboardInterrupt:
        note(f"finished work is stored in {output}: repeat the command to continue")
        raise
    _write(result, output)
    where = f"results in {output} (open {output / 'findings.md'})"
    show(
        result.to_json, lambda: study_document(result, View(verbose)), as_json=as_json, quiet=quiet, after=f"{where}\n"
    )
    return gating.outcome(result, study_sentence(result))


def _write(result: Study, folder: Path) -> None:
    """Write everything that is rendered from the record, and delete files that an earlier run rendered."""
    contents = rendered(result) | {"study.json": msgspec.json.format(result.to_json(), indent=2) + b"\n"}
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, data, force=True)
    for kind in ("tables", "pictures"):
        for path in (folder / kind).glob("*.*"):
            if f"{kind}/{path.name}" not in contents:
                path.unlink()
