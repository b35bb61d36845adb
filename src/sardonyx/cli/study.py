"""`sardonyx study`: the experiments on any set of models, into a folder that a later run goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import note, progress, show
from sardonyx.cli.durations import duration
from sardonyx.cli.gates import Gating
from sardonyx.cli.help import OUTPUT
from sardonyx.cli.options import reject_both
from sardonyx.records.study import Study
from sardonyx.reporting import gate
from sardonyx.reporting.options import View
from sardonyx.reporting.study import files as rendered
from sardonyx.reporting.study import render_study, study_sentence

SUMMARY = "Run the experiments on a set of models: attribution, tolerance, order, correlation, …"
HELP = f"""\b
Example:
  sardonyx study --zoo small -o study
  sardonyx study models/ -o study
  sardonyx study a.onnx b.onnx -o study --only attribution --only order
  sardonyx study models/ -o study --seconds 60 --thorough

Every finished piece of work is kept in the folder: a study that was stopped or killed goes on when the same command is
given again, and other options compute only what they change. What is not timed runs in several processes at once, what
is timed runs alone at the end. The folder gets tables (CSV, JSON, Markdown), pictures, findings.md with what the data
support, and study.json. docs/study.md says what each experiment does.

{gate.STUDY.help()}

Exit: 0 done, 1 failed, 2 usage, 4 a --fail-if was true.
"""

Sources = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[MODEL|FOLDER]...", help="ONNX files, and folders of them.", show_default=False),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where everything goes.", rich_help_panel=OUTPUT)
]
Zoo = Annotated[
    str | None,
    typer.Option("--zoo", metavar="NAME", help="A built-in set of models, made from configs: small. [default: none]"),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="EXPERIMENT", help="Run only this experiment. Repeatable. [default: all]"),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="EXPERIMENT", help="Leave this experiment out. Repeatable. [default: none]"),
]
Target = Annotated[
    options.Target, typer.Option("--target", help="Which passes are studied: portable ones, or ONNX Runtime's own too.")
]
Seconds = Annotated[
    str, typer.Option("--seconds", metavar="N", help="The most that the timed runs of one cell may take: 60, 90s, 2m.")
]
Thorough = Annotated[bool, typer.Option("--thorough", help="More seeds, sizes and shuffles; takes longer.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads for what is timed.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", min=1, help="Processes at once for what is not timed. [default: all cores]"
    ),
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
    """Run the public verb, write its Study into the folder, show it and hold it to the gates."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    gating = Gating.of(gate.STUDY, fail_if, baseline, summary, beside=sources or ())
    budget = duration(seconds)
    try:
        with progress(not quiet) as report:
            if report is not None:
                report("loading", None)
            from sardonyx import study as run_study

            found = run_study(
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
        note(f"what is finished is kept in {output}: the same command goes on from there")
        raise
    _write(found, output)
    show(
        found.to_json,
        lambda style: style.strong(study_sentence(found)),
        lambda style: f"{render_study(found, View(style, verbose)).rstrip()}\n\nall of it is in {output}\n",
        as_json=as_json,
        quiet=quiet,
    )
    return gating.outcome(found, study_sentence(found))


def _write(found: Study, folder: Path) -> None:
    """Everything that is made from the record, in the place of what an earlier run made of it."""
    whole = rendered(found) | {"study.json": msgspec.json.format(found.to_json(), indent=2) + b"\n"}
    for name, data in whole.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, data, force=True)
    for kind in ("tables", "pictures"):
        for path in (folder / kind).glob("*.*"):
            if f"{kind}/{path.name}" not in whole:
                path.unlink()
